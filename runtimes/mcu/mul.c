#include "fixed_point.h"
#include "kernels.h"

static inline int8_t product_of(const struct ep_mul *layer, int32_t first, int32_t second)
{
    const int32_t product = (first - layer->first_zero_point) * (second - layer->second_zero_point);
    const int32_t code = ep_rescale(product, layer->multiplier, layer->shift) + layer->zero_point;
    return (int8_t)ep_clamp(code, layer->lowest, layer->highest);
}

void ep_mul(const struct ep_mul *layer, const int8_t *first, const int8_t *second, int8_t *output)
{
    const int32_t *size = layer->size, *by = layer->first, *also = layer->second;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++)
            for (int32_t k = 0; k < size[2]; k++) {
                const int8_t *a = first + i * by[0] + j * by[1] + k * by[2];
                const int8_t *b = second + i * also[0] + j * also[1] + k * also[2];
                for (int32_t l = 0; l < size[3]; l++)
                    *output++ = product_of(layer, a[l * by[3]], b[l * also[3]]);
            }
}
