#include "block.h"

#include <stddef.h>

#include "dot.h"
#include "fixed_point.h"
#include "sum.h"
#include "vector.h"

/* Sums that are kept until they become codes. */
#define KEPT_CHANNELS 32
/* Sums of filters with two pixels: they begin with the bias, or with what they are. */
struct sums {
    const int32_t *bias;
    uint32_t pixel0[KEPT_CHANNELS], pixel1[KEPT_CHANNELS];
};

/* Where the sums are taken up: at the bias, the first time. */
static inline const uint32_t *begun(struct sums *sums, const uint32_t *of_pixel)
{
    return sums->bias != NULL ? (const uint32_t *)sums->bias : of_pixel;
}

/* Adds the products of `count` filters, `distance` apart, with codes of two pixels. A function of its own, so that the
 * compiler keeps the loop in registers. */
static EP_NOINLINE void add_products(const int8_t *filter, int32_t distance, int32_t count, const int8_t *pixel0,
                                     const int8_t *pixel1, int32_t length, struct sums *sums)
{
    const uint32_t *begun0 = begun(sums, sums->pixel0), *begun1 = begun(sums, sums->pixel1);
    for (int32_t i = 0; i < count; i += 2, filter += 2 * distance) {
        const int32_t two = i + 1 < count;
        const int8_t *filter0 = filter, *filter1 = filter + two * distance;
#ifdef EP_MVE
        int32_t sum0 = (int32_t)begun0[i], sum1 = (int32_t)begun0[i + two];
        int32_t sum2 = (int32_t)begun1[i], sum3 = (int32_t)begun1[i + two];
        for (int32_t j = 0; j < length; j += 16) {
            const mve_pred16_t left = vctp8q((uint32_t)(length - j));
            const int8x16_t w0 = vldrbq_z_s8(filter0 + j, left), w1 = vldrbq_z_s8(filter1 + j, left);
            const int8x16_t x0 = vldrbq_z_s8(pixel0 + j, left), x1 = vldrbq_z_s8(pixel1 + j, left);
            sum0 = vmladavaq_s8(sum0, w0, x0);
            sum1 = vmladavaq_s8(sum1, w1, x0);
            sum2 = vmladavaq_s8(sum2, w0, x1);
            sum3 = vmladavaq_s8(sum3, w1, x1);
        }
        sums->pixel0[i] = (uint32_t)sum0, sums->pixel0[i + 1] = (uint32_t)sum1;
        sums->pixel1[i] = (uint32_t)sum2, sums->pixel1[i + 1] = (uint32_t)sum3;
#else
        uint32_t sum0 = begun0[i], sum1 = begun0[i + two], sum2 = begun1[i], sum3 = begun1[i + two];
        int32_t j = 0;
#ifdef EP_DSP
        for (; j + 4 <= length; j += 4) {
            const uint32_t w0 = ep_load(filter0 + j), w1 = ep_load(filter1 + j);
            const uint32_t x0 = ep_load(pixel0 + j), x1 = ep_load(pixel1 + j);
            const uint32_t even0 = ep_even(x0), even1 = ep_even(x1), odd0 = ep_odd(x0), odd1 = ep_odd(x1);
            sum0 = ep_smlad(ep_odd(w0), odd0, ep_smlad(ep_even(w0), even0, sum0));
            sum1 = ep_smlad(ep_odd(w1), odd0, ep_smlad(ep_even(w1), even0, sum1));
            sum2 = ep_smlad(ep_odd(w0), odd1, ep_smlad(ep_even(w0), even1, sum2));
            sum3 = ep_smlad(ep_odd(w1), odd1, ep_smlad(ep_even(w1), even1, sum3));
        }
#endif
#pragma GCC unroll 4
        for (; j < length; j++) {
            const int32_t w0 = filter0[j], w1 = filter1[j], x0 = pixel0[j], x1 = pixel1[j];
            sum0 += ep_product(w0, x0);
            sum1 += ep_product(w1, x0);
            sum2 += ep_product(w0, x1);
            sum3 += ep_product(w1, x1);
        }
        sums->pixel0[i] = sum0, sums->pixel0[i + 1] = sum1;
        sums->pixel1[i] = sum2, sums->pixel1[i + 1] = sum3;
#endif
    }
    sums->bias = NULL;
}

#ifdef EP_DSP

/* Groups of four codes of two pixels, as pairs of int16: the even ones of both, the odd ones of both. */
static void unpack(const int8_t *pixel0, const int8_t *pixel1, int32_t length, uint32_t *unpacked)
{
    for (int32_t i = 0; i < length; i += 4) {
        const uint32_t word0 = ep_load(pixel0 + i), word1 = ep_load(pixel1 + i);
        *unpacked++ = ep_even(word0);
        *unpacked++ = ep_even(word1);
        *unpacked++ = ep_odd(word0);
        *unpacked++ = ep_odd(word1);
    }
}

/* The sums of `pairs` pairs of filters, from the bias on, with `length` unpacked codes, not 0. The inner loop is in one
 * piece, since it takes every register there is: 16 products in 16 instructions, and two to go on. */
static EP_NOINLINE void begin_unpacked(const int8_t *filter, int32_t distance, int32_t pairs, const int32_t *bias,
                                       const uint32_t *unpacked, int32_t length, uint32_t *sums0, uint32_t *sums1)
{
    for (; pairs > 0; pairs--) {
        const int8_t *filter0 = filter, *filter1 = filter + distance, *end = filter + length;
        const uint32_t *pixels = unpacked;
        uint32_t sum0 = (uint32_t)bias[0], sum1 = (uint32_t)bias[1], sum2 = sum0, sum3 = sum1;
        uint32_t w0, w1, pair, x0, x1;
        __asm__("1:\n"
            "ldr %[w0], [%[filter0]], #4\n"
            "ldr %[w1], [%[filter1]], #4\n"
            "ldrd %[x0], %[x1], [%[pixels]], #8\n"
            "sxtb16 %[pair], %[w0]\n"
            "smlad %[sum0], %[pair], %[x0], %[sum0]\n"
            "smlad %[sum2], %[pair], %[x1], %[sum2]\n"
            "sxtb16 %[pair], %[w1]\n"
            "smlad %[sum1], %[pair], %[x0], %[sum1]\n"
            "smlad %[sum3], %[pair], %[x1], %[sum3]\n"
            "ldrd %[x0], %[x1], [%[pixels]], #8\n"
            "sxtb16 %[w0], %[w0], ror #8\n"
            "smlad %[sum0], %[w0], %[x0], %[sum0]\n"
            "smlad %[sum2], %[w0], %[x1], %[sum2]\n"
            "sxtb16 %[w1], %[w1], ror #8\n"
            "smlad %[sum1], %[w1], %[x0], %[sum1]\n"
            "smlad %[sum3], %[w1], %[x1], %[sum3]\n"
            "cmp %[filter0], %[end]\n"
            "bne 1b\n"
            : [filter0] "+r"(filter0), [filter1] "+r"(filter1), [pixels] "+r"(pixels), [sum0] "+r"(sum0),
              [sum1] "+r"(sum1), [sum2] "+r"(sum2), [sum3] "+r"(sum3), [w0] "=&r"(w0), [w1] "=&r"(w1),
              [pair] "=&r"(pair), [x0] "=&r"(x0), [x1] "=&r"(x1)
                : [end] "r"(end)
                : "cc", "memory");
        sums0[0] = sum0, sums0[1] = sum1;
        sums1[0] = sum2, sums1[1] = sum3;
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
    unpack(input0, input1, done, unpacked);
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
