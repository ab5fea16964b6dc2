#include "pool.h"

/* The mean of the taps inside the image, ties away from zero. */
static int32_t mean(const struct ep_rows *rows, const struct ep_taps *taps)
{
    int32_t sum = 0;
    for (int32_t row = taps->first_row; row < taps->end_row; row++) {
        const int8_t *codes = ep_row_at(rows, row);
        for (int32_t column = taps->first_column; column < taps->end_column; column++)
            sum += codes[column * rows->column_stride];
    }
    const int32_t count = (taps->end_row - taps->first_row) * (taps->end_column - taps->first_column);
    return (sum > 0 ? sum + count / 2 : sum - count / 2) / count;
}

void ep_average_pool(const struct ep_pool *layer, const int8_t *input, int8_t *line_buffer, int8_t *output)
{
    ep_pool(layer, input, line_buffer, output, mean);
}
