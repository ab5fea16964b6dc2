#include <string.h>

#include "kernels.h"

void ep_resize_nearest(const struct ep_resize_nearest *layer, const int8_t *input, int8_t *output)
{
    const int32_t channels = layer->channels, row_length = layer->input_columns * channels;
    for (int32_t row = 0; row < layer->rows; row++) {
        const int8_t *from = input + layer->source_row[row] * row_length;
        for (int32_t column = 0; column < layer->columns; column++) {
            memcpy(output, from + layer->source_column[column] * channels, (size_t)channels);
            output += channels;
        }
    }
}
