/* The walk that average and max pooling share: channel by channel, so that a line buffer can hold rows of one. */
#ifndef EDGEPIPE_POOL_H
#define EDGEPIPE_POOL_H

#include <stddef.h>

#include "fixed_point.h"
#include "kernels.h"
#include "window.h"

/* The part of a window that lies inside the image; ends are excluded. */
struct ep_taps {
    int32_t first_row, end_row, first_column, end_column;
};

/* Where rows of the channel at hand are: in the image, or in the line buffer, row r at line r modulo `lines`. */
struct ep_rows {
    const int8_t *base;
    int32_t lines, row_stride, column_stride;
};

static inline const int8_t *ep_row_at(const struct ep_rows *rows, int32_t row)
{
    return rows->base + row % rows->lines * rows->row_stride;
}

/* Calls `reduce` for every window; it returns the output's code. */
static inline void ep_pool(const struct ep_pool *layer, const int8_t *input, int8_t *line_buffer, int8_t *output,
                           int32_t (*reduce)(const struct ep_rows *rows, const struct ep_taps *taps))
{
    const struct ep_image *image = &layer->input;
    const struct ep_window *window = &layer->window;
    const int32_t rows = ep_window_rows(image, window), columns = ep_window_columns(image, window);
    const int32_t row_length = image->columns * image->channels;
    for (int32_t channel = 0; channel < image->channels; channel++) {
        struct ep_rows from = {input + channel, image->rows, row_length, image->channels};
        if (line_buffer != NULL)
            from = (struct ep_rows){line_buffer, window->kernel_rows, image->columns, 1};
        int8_t *target = output + channel;
        int32_t filled = 0;
        for (int32_t i = 0; i < rows; i++) {
            struct ep_taps taps;
            const int32_t row = i * window->stride_rows - window->top;
            taps.first_row = row < 0 ? 0 : row;
            taps.end_row = row + window->kernel_rows < image->rows ? row + window->kernel_rows : image->rows;
            if (line_buffer != NULL)
                for (filled = filled < taps.first_row ? taps.first_row : filled; filled < taps.end_row; filled++)
                    for (int32_t x = 0; x < image->columns; x++)
                        line_buffer[filled % window->kernel_rows * image->columns + x] =
                            input[filled * row_length + x * image->channels + channel];
            for (int32_t j = 0; j < columns; j++) {
                const int32_t column = j * window->stride_columns - window->left;
                taps.first_column = column < 0 ? 0 : column;
                taps.end_column = column + window->kernel_columns < image->columns ? column + window->kernel_columns
                                                                                    : image->columns;
                *target = (int8_t)ep_clamp(reduce(&from, &taps), layer->lowest, layer->highest);
                target += image->channels;
            }
        }
    }
}

#endif
