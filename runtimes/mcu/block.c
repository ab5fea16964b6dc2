#include "block.h"

#include <stddef.h>

#include "dot.h"
#include "fixed_point.h"
#include "sum.h"

static const int8_t *added_at(const struct ep_block *block, int32_t pixel)
{
    const struct ep_residual *residual = block->residual;
    if (residual == NULL)
        return NULL;
    return block->added + pixel / residual->columns * residual->row_stride +
           pixel % residual->columns * residual->column_stride;
}

static inline int8_t finished(const struct ep_block *block, const int8_t *added, int32_t channel, uint32_t sum)
{
    const struct ep_requantization *output = &block->output;
    const int32_t step = channel * output->channel_step;
    const int32_t code = ep_to_code((int32_t)sum, output->multiplier[step], output->shift[step], output->zero_point);
    const int8_t clamped = (int8_t)ep_clamp(code, output->lowest, output->highest);
    if (added == NULL)
        return clamped;
    return ep_sum_of(&block->residual->sum, clamped, added[channel * block->residual->channel_stride]);
}

void ep_finish_channels(const struct ep_block *block, int32_t pixel, int32_t channel, const uint32_t sums[2])
{
    const int8_t *added = added_at(block, pixel);
    int8_t *target = block->target + pixel * block->channels;
    target[channel] = finished(block, added, channel, sums[0]);
    if (channel + 1 < block->channels)
        target[channel + 1] = finished(block, added, channel + 1, sums[1]);
}

#ifdef EP_DSP

/* Codes of a pixel that are kept as int16, so that they are not unpacked again for every filter. */
#define EP_COLUMN_LENGTH 256

static inline int32_t column_part(int32_t run_length, int32_t left)
{
    const int32_t whole = run_length & ~3;
    return whole < left ? whole : left;
}

/* Groups of four codes of two pixels: those with an even index of each, then the odd ones of each. */
static void unpack_columns(const struct ep_block *block, const int8_t *input0, const int8_t *input1, uint32_t *column)
{
    int32_t left = EP_COLUMN_LENGTH;
    for (int32_t run = 0; run < block->runs; run++) {
        const int32_t part = column_part(block->run_length, left);
        for (int32_t i = 0; i < part; i += 4) {
            const uint32_t x0 = ep_load(input0 + i), x1 = ep_load(input1 + i);
            column[0] = ep_even(x0);
            column[1] = ep_even(x1);
            column[2] = ep_odd(x0);
            column[3] = ep_odd(x1);
            column += 4;
        }
        left -= part;
        input0 += block->run_stride;
        input1 += block->run_stride;
    }
}

static inline void dot_columns(const int8_t *filter0, const int8_t *filter1, const uint32_t *column, int32_t length,
                               uint32_t sums[4])
{
    const int8_t *end = filter0 + length;
#pragma GCC unroll 2
    while (filter0 != end) {
        const uint32_t w0 = ep_load(filter0), w1 = ep_load(filter1);
        const uint32_t even0 = ep_even(w0), even1 = ep_even(w1), odd0 = ep_odd(w0), odd1 = ep_odd(w1);
        sums[0] = ep_smlad(odd0, column[2], ep_smlad(even0, column[0], sums[0]));
        sums[1] = ep_smlad(odd1, column[2], ep_smlad(even1, column[0], sums[1]));
        sums[2] = ep_smlad(odd0, column[3], ep_smlad(even0, column[1], sums[2]));
        sums[3] = ep_smlad(odd1, column[3], ep_smlad(even1, column[1], sums[3]));
        filter0 += 4, filter1 += 4, column += 4;
    }
}

#endif

void ep_two_pixels(const struct ep_block *block, const int8_t *input0, const int8_t *input1, int32_t pixel)
{
    const int8_t *added0 = added_at(block, pixel), *added1 = added_at(block, pixel + 1);
    int8_t *target0 = block->target + pixel * block->channels, *target1 = target0 + block->channels;
    const int32_t filter_length = block->runs * block->run_length;
#ifdef EP_DSP
    uint32_t columns[EP_COLUMN_LENGTH];
    unpack_columns(block, input0, input1, columns);
#endif
    for (int32_t channel = 0; channel < block->channels; channel += 2) {
        const int32_t next = channel + 1 < block->channels ? channel + 1 : channel;
        const int8_t *filter0 = block->filter + channel * filter_length, *filter1 = block->filter + next * filter_length;
        const int8_t *run0 = input0, *run1 = input1;
        const uint32_t bias0 = (uint32_t)block->output.bias[channel], bias1 = (uint32_t)block->output.bias[next];
        uint32_t sums[4] = {bias0, bias1, bias0, bias1};
#ifdef EP_DSP
        const uint32_t *column = columns;
        int32_t left = EP_COLUMN_LENGTH;
#endif
        for (int32_t run = 0; run < block->runs; run++) {
            int32_t done = 0;
#ifdef EP_DSP
            done = column_part(block->run_length, left);
            dot_columns(filter0, filter1, column, done, sums);
            column += done;
            left -= done;
#endif
            ep_dot_2x2(filter0 + done, filter1 + done, run0 + done, run1 + done, block->run_length - done, sums);
            filter0 += block->run_length, filter1 += block->run_length;
            run0 += block->run_stride, run1 += block->run_stride;
        }
        const int8_t code0 = finished(block, added0, channel, sums[0]);
        const int8_t code1 = finished(block, added1, channel, sums[2]);
        target0[channel] = code0;
        target1[channel] = code1;
        if (next != channel) {
            const int8_t next0 = finished(block, added0, next, sums[1]);
            const int8_t next1 = finished(block, added1, next, sums[3]);
            target0[next] = next0;
            target1[next] = next1;
        }
    }
}

void ep_one_pixel(const struct ep_block *block, const int8_t *input, int32_t pixel)
{
    const int32_t filter_length = block->runs * block->run_length;
    for (int32_t channel = 0; channel < block->channels; channel += 2) {
        const int32_t next = channel + 1 < block->channels ? channel + 1 : channel;
        const int8_t *filter0 = block->filter + channel * filter_length, *filter1 = block->filter + next * filter_length;
        const int8_t *from = input;
        uint32_t sums[2] = {(uint32_t)block->output.bias[channel], (uint32_t)block->output.bias[next]};
        for (int32_t run = 0; run < block->runs; run++) {
            ep_dot_2x1(filter0, filter1, from, block->run_length, sums);
            filter0 += block->run_length, filter1 += block->run_length;
            from += block->run_stride;
        }
        ep_finish_channels(block, pixel, channel, sums);
    }
}
