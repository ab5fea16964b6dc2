#include "block.h"

#include <stddef.h>

#include "dot.h"
#include "fixed_point.h"
#include "sum.h"
#include "unpacked.h"
#include "vector.h"

/* Sums that are kept until they become codes; an even number. */
#define KEPT_CHANNELS 32

/* Sums of filters with two pixels; until `bias` is NULL, they begin with the bias. */
struct sums {
    const int32_t *bias;
    uint32_t pixel0[KEPT_CHANNELS], pixel1[KEPT_CHANNELS];
};

/* Adds the products of `count` filters, `distance` apart, with codes of two pixels. A function of its own, so that the
 * compiler keeps the loop in registers. */
static EP_NOINLINE void add_products(const int8_t *filter, int32_t distance, int32_t count, const int8_t *pixel0,
                                     const int8_t *pixel1, int32_t length, struct sums *sums)
{
    const uint32_t *begin0 = sums->pixel0, *begin1 = sums->pixel1;
    if (sums->bias != NULL)
        begin0 = begin1 = (const uint32_t *)sums->bias;
    for (int32_t i = 0; i < count; i += 2, filter += 2 * distance) {
        const int32_t two = i + 1 < count;
        uint32_t each[4] = {begin0[i], begin0[i + two], begin1[i], begin1[i + two]};
        ep_dot_2x2(filter, filter + two * distance, pixel0, pixel1, length, each);
        sums->pixel0[i] = each[0], sums->pixel0[i + 1] = each[1];
        sums->pixel1[i] = each[2], sums->pixel1[i + 1] = each[3];
    }
    sums->bias = NULL;
}

#ifdef EP_DSP

/* Begins the sums of `pairs` pairs of filters, with `length` unpacked codes. */
static EP_NOINLINE void begin_unpacked(const int8_t *filter, int32_t distance, int32_t pairs, const int32_t *bias,
                                       const uint32_t *unpacked, int32_t length, uint32_t *sums0, uint32_t *sums1)
{
    for (; pairs > 0; pairs--) {
        uint32_t each[4] = {(uint32_t)bias[0], (uint32_t)bias[1], (uint32_t)bias[0], (uint32_t)bias[1]};
        ep_dot_unpacked(filter, filter + distance, unpacked, length, each);
        sums0[0] = each[0], sums0[1] = each[1];
        sums1[0] = each[2], sums1[1] = each[3];
        filter += 2 * distance, bias += 2, sums0 += 2, sums1 += 2;
    }
}

#endif

static const int8_t *added_at(const struct ep_block *block, int32_t pixel)
{
    const struct ep_residual *residual = block->residual;
    return block->added + pixel / residual->columns * residual->row_stride +
           pixel % residual->columns * residual->column_stride;
}

EP_NOINLINE void ep_finish(const struct ep_block *block, int32_t pixel, int32_t channel, int32_t count,
                           const uint32_t *sums)
{
    const int32_t zero_point = block->output.zero_point, lowest = block->output.lowest, highest = block->output.highest;
    const int32_t *multiplier = block->output.multiplier + channel;
    const int8_t *shift = block->output.shift + channel;
    const int32_t stride = block->residual == NULL ? 0 : block->residual->channel_stride;
    const int8_t *added = block->residual == NULL ? NULL : added_at(block, pixel) + channel * stride;
    int8_t *target = block->target + pixel * block->channels + channel;
#ifdef EP_MVE
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)stride);
    for (int32_t i = 0; i < count; i += 4) {
        const mve_pred16_t left = vctp32q((uint32_t)(count - i));
        const int32x4_t sum = vldrwq_z_s32((const int32_t *)sums + i, left);
        int32x4_t code = ep_to_codes(sum, vldrwq_z_s32(multiplier + i, left), vldrbq_z_s32(shift + i, left), zero_point,
                                     lowest, highest);
        if (added != NULL)
            code = ep_sums_of(&block->residual->sum, code,
                              vldrbq_gather_offset_z_s32(added + i * stride, places, left));
        vstrbq_p_s32(target + i, code, left);
    }
#else
    if (added == NULL && lowest == INT8_MIN && highest == INT8_MAX) {
        for (int32_t i = 0; i < count; i++)
            target[i] = ep_saturate(ep_to_code((int32_t)sums[i], multiplier[i], shift[i], zero_point));
        return;
    }
    if (added == NULL) {
        for (int32_t i = 0; i < count; i++) {
            const int32_t code = ep_to_code((int32_t)sums[i], multiplier[i], shift[i], zero_point);
            target[i] = (int8_t)ep_clamp(code, lowest, highest);
        }
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const int32_t code = ep_to_code((int32_t)sums[i], multiplier[i], shift[i], zero_point);
        target[i] = ep_sum_of(&block->residual->sum, ep_clamp(code, lowest, highest), added[i * stride]);
    }
#endif
}

void ep_two_pixels(const struct ep_block *block, const int8_t *input0, const int8_t *input1, int32_t pixel)
{
    const int32_t distance = block->runs * block->run_length;
    int32_t done = 0;
#ifdef EP_DSP
    uint32_t unpacked[EP_COLUMN_LENGTH];
    done = (block->run_length < EP_COLUMN_LENGTH ? block->run_length : EP_COLUMN_LENGTH) & ~3;
    ep_unpack(input0, input1, done, unpacked);
#endif
    for (int32_t channel = 0; channel < block->channels; channel += KEPT_CHANNELS) {
        const int32_t left = block->channels - channel, count = left < KEPT_CHANNELS ? left : KEPT_CHANNELS;
        const int8_t *filter = block->filter + channel * distance;
        struct sums sums;
        sums.bias = block->output.bias + channel;
#ifdef EP_DSP
        if (done > 0) {
            begin_unpacked(filter, distance, count / 2, sums.bias, unpacked, done, sums.pixel0, sums.pixel1);
            if (count % 2 == 1) {
                const int32_t last = count - 1, twice[2] = {sums.bias[last], sums.bias[last]};
                begin_unpacked(filter + last * distance, 0, 1, twice, unpacked, done, sums.pixel0 + last,
                               sums.pixel1 + last);
            }
            sums.bias = NULL;
        }
#endif
        if (done < block->run_length)
            add_products(filter + done, distance, count, input0 + done, input1 + done, block->run_length - done, &sums);
        for (int32_t run = 1; run < block->runs; run++) {
            const int32_t from = run * block->run_stride;
            add_products(filter + run * block->run_length, distance, count, input0 + from, input1 + from,
                         block->run_length, &sums);
        }
        ep_finish(block, pixel, channel, count, sums.pixel0);
        ep_finish(block, pixel + 1, channel, count, sums.pixel1);
    }
}

void ep_one_pixel(const struct ep_block *block, const int8_t *input, int32_t pixel)
{
    const int32_t filter_length = block->runs * block->run_length;
    for (int32_t channel = 0; channel < block->channels; channel += 2) {
        const int32_t two = channel + 1 < block->channels;
        const int8_t *filter0 = block->filter + channel * filter_length, *filter1 = filter0 + two * filter_length;
        const int8_t *from = input;
        uint32_t sums[2] = {(uint32_t)block->output.bias[channel], (uint32_t)block->output.bias[channel + two]};
        for (int32_t run = 0; run < block->runs; run++) {
            ep_dot_2x1(filter0, filter1, from, block->run_length, sums);
            filter0 += block->run_length, filter1 += block->run_length;
            from += block->run_stride;
        }
        ep_finish(block, pixel, channel, 1 + two, sums);
    }
}
