#include <stddef.h>
#include <string.h>

#include "depthwise_3x3.h"
#include "dot.h"
#include "fixed_point.h"
#include "kernels.h"
#include "vector.h"
#include "window.h"

/* Sums that are kept until they become codes. */
#define KEPT_COLUMNS 32

/* Padded rows of one channel: row r of the padded image, while it is needed, is line r modulo `count`. */
struct lines {
    int8_t *buffer;
    int32_t count, length;
};

static inline int8_t *line_at(const struct lines *lines, int32_t row)
{
    return lines->buffer + row % lines->count * lines->length;
}

static void fill_line(const struct ep_depthwise *layer, const int8_t *input, int32_t row, int8_t *line, int32_t length)
{
    const struct ep_window *window = &layer->window;
    const int32_t columns = layer->input.columns, channels = layer->input.channels;
    row -= window->top;
    if (row < 0 || row >= layer->input.rows) {
        memset(line, layer->input_zero_point, (size_t)length);
        return;
    }
    const int8_t *from = input + row * columns * channels;
    int32_t i = 0;
    for (; i < window->left; i++)
        *line++ = (int8_t)layer->input_zero_point;
#pragma GCC unroll 4
    for (i = 0; i < columns; i++, from += channels)
        *line++ = *from;
    for (i = 0; i < window->right; i++)
        *line++ = (int8_t)layer->input_zero_point;
}

/* Whether ep_sum_3x3 can be used, and should: vectors take any window tap by tap. */
static int is_plain_3x3(const struct ep_window *window, const struct lines *lines)
{
#ifdef EP_MVE
    (void)window, (void)lines;
    return 0;
#else
    return lines->buffer != NULL && lines->length >= 4 && window->kernel_rows == 3 && window->kernel_columns == 3 &&
           window->dilation_rows == 1 && window->dilation_columns == 1;
#endif
}

/* Adds one tap: `factor` times each `stride`-th code. */
static void add_tap(int32_t factor, const int8_t *codes, int32_t stride, int32_t count, uint32_t *sums)
{
#ifdef EP_MVE
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)stride);
    for (int32_t i = 0; i < count; i += 4, codes += 4 * stride) {
        const mve_pred16_t left = vctp32q((uint32_t)(count - i));
        int32_t *sum = (int32_t *)sums + i;
        const int32x4_t x = vldrbq_gather_offset_z_s32(codes, places, left);
        vstrwq_p_s32(sum, vmlaq_n_s32(vldrwq_z_s32(sum, left), x, factor), left);
    }
#else
#pragma GCC unroll 4
    for (int32_t i = 0; i < count; i++, codes += stride)
        sums[i] += ep_product(factor, *codes);
#endif
}

/* Adds a filter's row of `length` taps, `gap` columns apart, on `count` windows, `stride` apart, to their sums. */
static EP_NOINLINE void add_row(const int8_t *filter, int32_t length, int32_t gap, const int8_t *line, int32_t stride,
                                int32_t count, uint32_t *sums)
{
    int32_t j = 0;
#ifdef EP_DSP
    for (; gap == 1 && j + 4 <= length; j += 4, line += 4) {
        const uint32_t taps = ep_load(filter + j), even = ep_even(taps), odd = ep_odd(taps);
        const int8_t *codes = line;
        for (int32_t i = 0; i < count; i++, codes += stride) {
            const uint32_t word = ep_load(codes);
            sums[i] = ep_smlad(odd, ep_odd(word), ep_smlad(even, ep_even(word), sums[i]));
        }
    }
#endif
    for (; j < length; j++, line += gap)
        add_tap(filter[j], line, stride, count, sums);
}

/* Sums of `count` windows from output column `column` on; the first line is that of padded row `row`. */
static void sum_lines(const struct ep_depthwise *layer, const int8_t *filter, uint32_t bias, const struct lines *lines,
                      int32_t row, int32_t column, int32_t count, uint32_t *sums)
{
    const struct ep_window *window = &layer->window;
    for (int32_t i = 0; i < count; i++)
        sums[i] = bias;
    for (int32_t i = 0; i < window->kernel_rows; i++, filter += window->kernel_columns)
        add_row(filter, window->kernel_columns, window->dilation_columns,
                line_at(lines, row + i * window->dilation_rows) + column * window->stride_columns,
                window->stride_columns, count, sums);
}

static void add_padding(int32_t product, int32_t from, int32_t to, uint32_t *sums)
{
    for (int32_t i = from; i < to; i++)
        sums[i] += (uint32_t)product;
}

/* The same straight from the image, without lines; the first window begins at `row` and `column` of it. */
static void sum_image(const struct ep_depthwise *layer, const int8_t *filter, uint32_t bias, const int8_t *input,
                      int32_t row, int32_t column, int32_t count, uint32_t *sums)
{
    const struct ep_window *window = &layer->window;
    const struct ep_image *image = &layer->input;
    const int32_t stride = window->stride_columns;
    for (int32_t i = 0; i < count; i++)
        sums[i] = bias;
    for (int32_t i = 0; i < window->kernel_rows; i++, row += window->dilation_rows)
        for (int32_t j = 0; j < window->kernel_columns; j++) {
            const int32_t factor = *filter++, padding = factor * layer->input_zero_point;
            /* Windows from `begin` to `end` have this tap inside the image; the first has it at column x. */
            const int32_t x = column + j * window->dilation_columns;
            const int32_t begin = x < 0 ? (stride - 1 - x) / stride : 0;
            int32_t end = x < image->columns ? (image->columns - 1 - x) / stride + 1 : 0;
            if (row < 0 || row >= image->rows)
                end = 0;
            end = end < count ? end : count;
            if (begin >= end) {
                add_padding(padding, 0, count, sums);
                continue;
            }
            add_padding(padding, 0, begin, sums);
            add_padding(padding, end, count, sums);
            add_tap(factor, input + (row * image->columns + x + begin * stride) * image->channels,
                    stride * image->channels, end - begin, sums + begin);
        }
}

/* Codes of one channel from their sums, `step` apart. */
static EP_NOINLINE void finish(const struct ep_requantization *output, int32_t channel, const uint32_t *sums,
                               int32_t count, int8_t *target, int32_t step)
{
    const int32_t multiplier = output->multiplier[channel], shift = output->shift[channel];
    const int32_t zero_point = output->zero_point, lowest = output->lowest, highest = output->highest;
#ifdef EP_MVE
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)step);
    for (int32_t i = 0; i < count; i += 4, target += 4 * step) {
        const mve_pred16_t left = vctp32q((uint32_t)(count - i));
        const int32x4_t sum = vldrwq_z_s32((const int32_t *)sums + i, left);
        const int32x4_t code =
            ep_to_codes(sum, vdupq_n_s32(multiplier), vdupq_n_s32(shift), zero_point, lowest, highest);
        vstrbq_scatter_offset_p_s32(target, places, code, left);
    }
#else
    if (lowest == INT8_MIN && highest == INT8_MAX) {
        for (int32_t i = 0; i < count; i++, target += step)
            *target = ep_saturate(ep_to_code((int32_t)sums[i], multiplier, shift, zero_point));
        return;
    }
    for (int32_t i = 0; i < count; i++, target += step)
        *target = (int8_t)ep_clamp(ep_to_code((int32_t)sums[i], multiplier, shift, zero_point), lowest, highest);
#endif
}

static void one_channel(const struct ep_depthwise *layer, const int8_t *input, const struct lines *lines,
                        int32_t channel, int8_t *target)
{
    const struct ep_window *window = &layer->window;
    const int32_t rows = ep_window_rows(&layer->input, window), columns = ep_window_columns(&layer->input, window);
    const int32_t step = layer->input.channels * layer->depth_multiplier;
    const int8_t *filter = layer->filter + channel * window->kernel_rows * window->kernel_columns;
    const uint32_t bias = (uint32_t)layer->output.bias[channel];
    const int plain_3x3 = is_plain_3x3(window, lines);
    const struct ep_taps_3x3 taps = plain_3x3 ? ep_pack_taps(filter) : (struct ep_taps_3x3){0};
    int32_t filled = 0;
    for (int32_t i = 0; i < rows; i++) {
        const int32_t row = i * window->stride_rows;
        if (lines->buffer != NULL)
            for (filled = filled < row ? row : filled; filled < row + lines->count; filled++)
                fill_line(layer, input, filled, line_at(lines, filled), lines->length);
        for (int32_t column = 0; column < columns; column += KEPT_COLUMNS) {
            const int32_t count = columns - column < KEPT_COLUMNS ? columns - column : KEPT_COLUMNS;
            uint32_t sums[KEPT_COLUMNS];
            if (lines->buffer == NULL)
                sum_image(layer, filter, bias, input, row - window->top,
                          column * window->stride_columns - window->left, count, sums);
            else if (plain_3x3)
                ep_sum_3x3(&taps, bias, line_at(lines, row), line_at(lines, row + 1), line_at(lines, row + 2),
                        column * window->stride_columns, window->stride_columns, count, sums);
            else
                sum_lines(layer, filter, bias, lines, row, column, count, sums);
            finish(&layer->output, channel, sums, count, target, step);
            target += count * step;
        }
    }
}

void ep_depthwise(const struct ep_depthwise *layer, const int8_t *input, int8_t *line_buffer, int8_t *output)
{
    const struct ep_window *window = &layer->window;
    const struct lines lines = {
        .buffer = line_buffer,
        .count = (window->kernel_rows - 1) * window->dilation_rows + 1,
        .length = window->left + layer->input.columns + window->right,
    };
    for (int32_t channel = 0; channel < layer->input.channels * layer->depth_multiplier; channel++)
        one_channel(layer, input + channel / layer->depth_multiplier, &lines, channel, output + channel);
}
