#include "fixed_point.h"
#include "kernels.h"

static int32_t total(const struct ep_mean *layer, const int8_t *input)
{
    const int32_t *size = layer->averaged_size, *stride = layer->averaged_stride;
    int32_t sum = 0;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++)
            sum += input[i * stride[0] + j * stride[1]];
    return sum;
}

void ep_mean(const struct ep_mean *layer, const int8_t *input, int8_t *output)
{
    const int32_t *size = layer->kept_size, *stride = layer->kept_stride;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++) {
            const int32_t sum = total(layer, input + i * stride[0] + j * stride[1]) + layer->offset;
            const int32_t code = ep_rescale(sum, layer->multiplier, layer->shift) + layer->zero_point;
            *output++ = (int8_t)ep_clamp(code, layer->lowest, layer->highest);
        }
}
