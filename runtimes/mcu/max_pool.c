#include "pool.h"

/* The highest of the taps inside the image; the lowest code if there are none. */
static int32_t highest(const struct ep_rows *rows, const struct ep_taps *taps)
{
    int32_t found = INT8_MIN;
    for (int32_t row = taps->first_row; row < taps->end_row; row++) {
        const int8_t *codes = ep_row_at(rows, row);
        for (int32_t column = taps->first_column; column < taps->end_column; column++) {
            const int32_t code = codes[column * rows->column_stride];
            found = code > found ? code : found;
        }
    }
    return found;
}

void ep_max_pool(const struct ep_pool *layer, const int8_t *input, int8_t *line_buffer, int8_t *output)
{
    ep_pool(layer, input, line_buffer, output, highest);
}
