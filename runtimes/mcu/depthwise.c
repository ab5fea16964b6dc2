#include <stddef.h>
#include <string.h>

#include "dot.h"
#include "fixed_point.h"
#include "kernels.h"
#include "window.h"

#ifdef EP_MVE
#include "vector.h"
#endif

/* What one channel's output needs; passed by value, so that no store of a code could have changed it. */
struct channel {
    const int8_t *filter; /* [row][column] */
    uint32_t bias;
    int32_t multiplier, shift;
    int32_t zero_point, lowest, highest;
    int8_t *target;
};

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
    memset(line, layer->input_zero_point, (size_t)window->left);
    line += window->left;
    const int8_t *from = input + row * columns * channels;
#pragma GCC unroll 4
    for (int32_t i = 0; i < columns; i++)
        line[i] = from[i * channels];
    memset(line + columns, layer->input_zero_point, (size_t)window->right);
}

static inline void put(struct channel channel, int32_t place, uint32_t sum)
{
    const int32_t code = ep_to_code((int32_t)sum, channel.multiplier, channel.shift, channel.zero_point);
    channel.target[place] = (int8_t)ep_clamp(code, channel.lowest, channel.highest);
}

/* A row of output of a 3x3 window without gaps. */
static void row_3x3(const struct ep_depthwise *layer, struct channel channel, const struct lines *lines,
                    int32_t row, int32_t columns)
{
    const int8_t *line0 = line_at(lines, row), *line1 = line_at(lines, row + 1), *line2 = line_at(lines, row + 2);
    const int32_t stride = layer->window.stride_columns;
    const int32_t step = layer->input.channels * layer->depth_multiplier;
    const int8_t *filter = channel.filter;
    int32_t column = 0, place = 0;
#ifdef EP_DSP
    const uint32_t outer0 = ep_pack(filter[0], filter[2]), middle0 = ep_pack(filter[1], 0);
    const uint32_t outer1 = ep_pack(filter[3], filter[5]), middle1 = ep_pack(filter[4], 0);
    const uint32_t outer2 = ep_pack(filter[6], filter[8]), middle2 = ep_pack(filter[7], 0);
    for (; stride == 1 && column + 1 < columns; column += 2) {
        uint32_t left = channel.bias, right = channel.bias;
        uint32_t word, even, odd;
        word = ep_load(line0), even = ep_even(word), odd = ep_odd(word);
        left = ep_smlabb(middle0, odd, ep_smlad(outer0, even, left));
        right = ep_smlabt(middle0, even, ep_smlad(outer0, odd, right));
        word = ep_load(line1), even = ep_even(word), odd = ep_odd(word);
        left = ep_smlabb(middle1, odd, ep_smlad(outer1, even, left));
        right = ep_smlabt(middle1, even, ep_smlad(outer1, odd, right));
        word = ep_load(line2), even = ep_even(word), odd = ep_odd(word);
        left = ep_smlabb(middle2, odd, ep_smlad(outer2, even, left));
        right = ep_smlabt(middle2, even, ep_smlad(outer2, odd, right));
        put(channel, place, left);
        put(channel, place + step, right);
        line0 += 2, line1 += 2, line2 += 2, place += 2 * step;
    }
    /* All but the last, which may end where the line does. */
    for (; column + 1 < columns; column++) {
        const uint32_t word0 = ep_load(line0), word1 = ep_load(line1), word2 = ep_load(line2);
        uint32_t sum = channel.bias;
        sum = ep_smlabb(middle0, ep_odd(word0), ep_smlad(outer0, ep_even(word0), sum));
        sum = ep_smlabb(middle1, ep_odd(word1), ep_smlad(outer1, ep_even(word1), sum));
        sum = ep_smlabb(middle2, ep_odd(word2), ep_smlad(outer2, ep_even(word2), sum));
        put(channel, place, sum);
        line0 += stride, line1 += stride, line2 += stride, place += step;
    }
#endif
    const int32_t w0 = filter[0], w1 = filter[1], w2 = filter[2], w3 = filter[3], w4 = filter[4];
    const int32_t w5 = filter[5], w6 = filter[6], w7 = filter[7], w8 = filter[8];
    for (; column < columns; column++) {
        uint32_t sum = channel.bias;
        sum += ep_product(w0, line0[0]) + ep_product(w1, line0[1]) + ep_product(w2, line0[2]);
        sum += ep_product(w3, line1[0]) + ep_product(w4, line1[1]) + ep_product(w5, line1[2]);
        sum += ep_product(w6, line2[0]) + ep_product(w7, line2[1]) + ep_product(w8, line2[2]);
        put(channel, place, sum);
        line0 += stride, line1 += stride, line2 += stride, place += step;
    }
}

/* A row of output of any window. */
static void row_of_lines(const struct ep_depthwise *layer, struct channel channel, const struct lines *lines,
                         int32_t row, int32_t columns)
{
    const struct ep_window *window = &layer->window;
    const int32_t step = layer->input.channels * layer->depth_multiplier;
    for (int32_t column = 0; column < columns; column++) {
        const int8_t *filter = channel.filter;
        uint32_t sum = channel.bias;
        for (int32_t i = 0; i < window->kernel_rows; i++) {
            const int8_t *line = line_at(lines, row + i * window->dilation_rows) + column * window->stride_columns;
            for (int32_t j = 0; j < window->kernel_columns; j++)
                sum += ep_product(*filter++, line[j * window->dilation_columns]);
        }
        put(channel, column * step, sum);
    }
}

/* One element of output, straight from the image. */
static void put_from_image(const struct ep_depthwise *layer, struct channel channel, const int8_t *input,
                           int32_t row, int32_t column, int32_t place)
{
    const struct ep_window *window = &layer->window;
    const int8_t *filter = channel.filter;
    uint32_t sum = channel.bias;
    for (int32_t i = 0; i < window->kernel_rows; i++) {
        const int32_t y = row + i * window->dilation_rows;
        for (int32_t j = 0; j < window->kernel_columns; j++) {
            const int32_t x = column + j * window->dilation_columns;
            const int inside = y >= 0 && y < layer->input.rows && x >= 0 && x < layer->input.columns;
            const int32_t code =
                inside ? input[(y * layer->input.columns + x) * layer->input.channels] : layer->input_zero_point;
            sum += ep_product(*filter++, code);
        }
    }
    put(channel, place, sum);
}

static void through_lines(const struct ep_depthwise *layer, struct channel channel, const int8_t *input,
                          struct lines *lines, int32_t rows, int32_t columns)
{
    const struct ep_window *window = &layer->window;
    const int plain_3x3 = window->kernel_rows == 3 && window->kernel_columns == 3 && window->dilation_rows == 1 &&
                          window->dilation_columns == 1;
    const int32_t step = columns * layer->input.channels * layer->depth_multiplier;
    int32_t filled = 0;
    for (int32_t i = 0; i < rows; i++) {
        const int32_t row = i * window->stride_rows;
        for (filled = filled < row ? row : filled; filled < row + lines->count; filled++)
            fill_line(layer, input, filled, line_at(lines, filled), lines->length);
        if (plain_3x3)
            row_3x3(layer, channel, lines, row, columns);
        else
            row_of_lines(layer, channel, lines, row, columns);
        channel.target += step;
    }
}

void ep_depthwise(const struct ep_depthwise *layer, const int8_t *input, int8_t *line_buffer, int8_t *output)
{
    const struct ep_window *window = &layer->window;
    const struct ep_requantization *to = &layer->output;
    const int32_t rows = ep_window_rows(&layer->input, window), columns = ep_window_columns(&layer->input, window);
    const int32_t channels = layer->input.channels * layer->depth_multiplier;
    struct lines lines = {
        .buffer = line_buffer,
        .count = (window->kernel_rows - 1) * window->dilation_rows + 1,
        .length = window->left + layer->input.columns + window->right,
    };
    for (int32_t i = 0; i < channels; i++) {
        const struct channel here = {
            .filter = layer->filter + i * window->kernel_rows * window->kernel_columns,
            .bias = (uint32_t)to->bias[i],
            .multiplier = to->multiplier[i * to->channel_step],
            .shift = to->shift[i * to->channel_step],
            .zero_point = to->zero_point,
            .lowest = to->lowest,
            .highest = to->highest,
            .target = output + i,
        };
        const int8_t *from = input + i / layer->depth_multiplier;
        if (line_buffer != NULL) {
            through_lines(layer, here, from, &lines, rows, columns);
            continue;
        }
        for (int32_t row = 0, place = 0; row < rows; row++)
            for (int32_t column = 0; column < columns; column++, place += channels)
                put_from_image(layer, here, from, row * window->stride_rows - window->top,
                               column * window->stride_columns - window->left, place);
    }
}
