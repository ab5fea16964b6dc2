#include <string.h>

#include "block.h"
#include "dot.h"
#include "window.h"

/* Sums of two filters over a stretch of padding: taps of the input's zero point. */
static void add_padding(const int8_t *filter0, const int8_t *filter1, int32_t length, int32_t zero_point,
                        uint32_t sums[2])
{
    int32_t total0 = 0, total1 = 0;
    for (int32_t i = 0; i < length; i++) {
        total0 += filter0[i];
        total1 += filter1[i];
    }
    sums[0] += ep_product(total0, zero_point);
    sums[1] += ep_product(total1, zero_point);
}

/* One pixel, tap by tap, of a window that reaches over the image's border or has gaps between its columns. */
static void careful_pixel(const struct ep_conv *layer, const struct ep_block *block, const int8_t *input, int32_t row,
                          int32_t column, int32_t pixel)
{
    const struct ep_window *window = &layer->window;
    const int32_t depth = layer->input.channels;
    const int32_t filter_length = window->kernel_rows * window->kernel_columns * depth;
    for (int32_t channel = 0; channel < block->channels; channel += 2) {
        const int32_t two = channel + 1 < block->channels;
        const int8_t *filter0 = block->filter + channel * filter_length, *filter1 = filter0 + two * filter_length;
        uint32_t sums[2] = {(uint32_t)block->output.bias[channel], (uint32_t)block->output.bias[channel + two]};
        for (int32_t i = 0; i < window->kernel_rows; i++) {
            const int32_t y = row + i * window->dilation_rows;
            for (int32_t j = 0; j < window->kernel_columns; j++) {
                const int32_t x = column + j * window->dilation_columns;
                if (y >= 0 && y < layer->input.rows && x >= 0 && x < layer->input.columns)
                    ep_dot_2x1(filter0, filter1, input + (y * layer->input.columns + x) * depth, depth, sums);
                else
                    add_padding(filter0, filter1, depth, layer->input_zero_point, sums);
                filter0 += depth, filter1 += depth;
            }
        }
        ep_finish(block, pixel, channel, 1 + two, sums);
    }
}

/* The window at a row and column of the image, padding and all, as the filters have it. */
static void gather(const struct ep_conv *layer, const int8_t *input, int32_t row, int32_t column, int8_t *gathered)
{
    const struct ep_window *window = &layer->window;
    const int32_t depth = layer->input.channels, columns = layer->input.columns;
    const int inside = column >= 0 && column + window->kernel_columns <= columns && window->dilation_columns == 1;
    const size_t run_length = (size_t)(window->kernel_columns * depth);
    for (int32_t i = 0; i < window->kernel_rows; i++) {
        const int32_t y = row + i * window->dilation_rows;
        if (y < 0 || y >= layer->input.rows) {
            memset(gathered, layer->input_zero_point, run_length);
        } else if (inside) {
            memcpy(gathered, input + (y * columns + column) * depth, run_length);
        } else {
            for (int32_t j = 0; j < window->kernel_columns; j++) {
                const int32_t x = column + j * window->dilation_columns;
                if (x >= 0 && x < columns)
                    memcpy(gathered + j * depth, input + (y * columns + x) * depth, (size_t)depth);
                else
                    memset(gathered + j * depth, layer->input_zero_point, (size_t)depth);
            }
        }
        gathered += run_length;
    }
}

/* Two windows after the other, wherever they lie. */
static void conv_gathered(const struct ep_conv *layer, const struct ep_block *block, const int8_t *input)
{
    const struct ep_window *window = &layer->window;
    const int32_t rows = ep_window_rows(&layer->input, window), columns = ep_window_columns(&layer->input, window);
    int8_t gathered[2][EP_COLUMN_LENGTH];
    int32_t pixel = 0;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < columns; j++, pixel++) {
            gather(layer, input, i * window->stride_rows - window->top, j * window->stride_columns - window->left,
                   gathered[pixel % 2]);
            if (pixel % 2 == 1)
                ep_two_pixels(block, gathered[0], gathered[1], pixel - 1);
        }
    if (pixel % 2 == 1)
        ep_one_pixel(block, gathered[0], pixel - 1);
}

/* Windows straight from the image. */
static void conv_in_place(const struct ep_conv *layer, const struct ep_block *block, const int8_t *input)
{
    const struct ep_window *window = &layer->window;
    const int32_t depth = layer->input.channels, row_length = layer->input.columns * depth;
    const int32_t rows = ep_window_rows(&layer->input, window), columns = ep_window_columns(&layer->input, window);
    /* The last row and column at which a window begins that lies inside the image. */
    const int32_t last_row = layer->input.rows - 1 - (window->kernel_rows - 1) * window->dilation_rows;
    const int32_t last_column = layer->input.columns - window->kernel_columns;
    for (int32_t i = 0, pixel = 0; i < rows; i++) {
        const int32_t row = i * window->stride_rows - window->top;
        const int inside =
            row >= 0 && row <= last_row && (window->dilation_columns == 1 || window->kernel_columns == 1);
        for (int32_t j = 0; j < columns; j++, pixel++) {
            const int32_t column = j * window->stride_columns - window->left;
            if (!inside || column < 0 || column > last_column) {
                careful_pixel(layer, block, input, row, column, pixel);
                continue;
            }
            const int8_t *from = input + row * row_length + column * depth;
            if (j + 1 < columns && column + window->stride_columns <= last_column) {
                ep_two_pixels(block, from, from + window->stride_columns * depth, pixel);
                j++, pixel++;
            } else {
                ep_one_pixel(block, from, pixel);
            }
        }
    }
}

void ep_conv(const struct ep_conv *layer, const int8_t *input, const struct ep_residual *residual, const int8_t *added,
             int8_t *output)
{
    const struct ep_window *window = &layer->window;
    const int32_t run_length = window->kernel_columns * layer->input.channels;
    const int32_t filter_length = window->kernel_rows * run_length;
    const int gathered = filter_length <= EP_COLUMN_LENGTH;
    const struct ep_block block = {
        .filter = layer->filter,
        .runs = gathered ? 1 : window->kernel_rows,
        .run_length = gathered ? filter_length : run_length,
        .run_stride = window->dilation_rows * layer->input.columns * layer->input.channels,
        .channels = layer->output_channels,
        .output = layer->output,
        .residual = residual,
        .added = added,
        .target = output,
    };
    if (gathered)
        conv_gathered(layer, &block, input);
    else
        conv_in_place(layer, &block, input);
}
