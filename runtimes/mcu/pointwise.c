#include "block.h"

void ep_pointwise(const struct ep_pointwise *layer, const int8_t *input, const struct ep_residual *residual,
                  const int8_t *added, int8_t *output)
{
    const struct ep_block block = {
        .filter = layer->filter,
        .runs = 1,
        .run_length = layer->input_channels,
        .channels = layer->output_channels,
        .output = layer->output,
        .residual = residual,
        .added = added,
        .target = output,
    };
    int32_t pixel = 0;
    for (; pixel + 1 < layer->pixels; pixel += 2) {
        ep_two_pixels(&block, input, input + layer->input_channels, pixel);
        input += 2 * layer->input_channels;
    }
    if (pixel < layer->pixels)
        ep_one_pixel(&block, input, pixel);
}
