/* Sums of 3x3 windows over three lines of one channel. */
#ifndef EDGEPIPE_DEPTHWISE_3X3_H
#define EDGEPIPE_DEPTHWISE_3X3_H

#include "dot.h"
#include "instructions.h"

#ifdef EP_DSP

/* A 3x3 filter as pairs of int16: the outer taps of each row, and the middle ones. */
struct ep_taps_3x3 {
    uint32_t outer0, outer1, outer2, middle01, middle2;
};

static inline struct ep_taps_3x3 ep_pack_taps(const int8_t *filter)
{
    return (struct ep_taps_3x3){
        .outer0 = ep_pack(filter[0], filter[2]),
        .outer1 = ep_pack(filter[3], filter[5]),
        .outer2 = ep_pack(filter[6], filter[8]),
        .middle01 = ep_pack(filter[1], filter[4]),
        .middle2 = ep_pack(filter[7], 0),
    };
}

/* The sum of a window on the left three of four columns. */
static inline uint32_t ep_on_left(struct ep_taps_3x3 taps, uint32_t sum, uint32_t word0, uint32_t word1,
                                  uint32_t word2)
{
    sum = ep_smlabb(taps.middle01, ep_odd(word0), ep_smlad(taps.outer0, ep_even(word0), sum));
    sum = ep_smlatb(taps.middle01, ep_odd(word1), ep_smlad(taps.outer1, ep_even(word1), sum));
    return ep_smlabb(taps.middle2, ep_odd(word2), ep_smlad(taps.outer2, ep_even(word2), sum));
}

/* On the right three. */
static inline uint32_t ep_on_right(struct ep_taps_3x3 taps, uint32_t sum, uint32_t word0, uint32_t word1,
                                   uint32_t word2)
{
    sum = ep_smlabt(taps.middle01, ep_even(word0), ep_smlad(taps.outer0, ep_odd(word0), sum));
    sum = ep_smlatt(taps.middle01, ep_even(word1), ep_smlad(taps.outer1, ep_odd(word1), sum));
    return ep_smlabt(taps.middle2, ep_even(word2), ep_smlad(taps.outer2, ep_odd(word2), sum));
}

/* Sums of `count` windows of 3x3 without gaps, `stride` columns apart; the first begins at `start` on lines that are at
 * least four codes long. Words are loaded such that none reaches over a line's end. */
static EP_NOINLINE void ep_sum_3x3(const struct ep_taps_3x3 *packed, uint32_t bias, const int8_t *line0,
                                   const int8_t *line1, const int8_t *line2, int32_t start, int32_t stride,
                                   int32_t count, uint32_t *sums)
{
    const struct ep_taps_3x3 taps = *packed;
    int32_t i = 0;
    line0 += start, line1 += start, line2 += start;
    for (; stride == 1 && i + 1 < count; i += 2) {
        const uint32_t word0 = ep_load(line0), word1 = ep_load(line1), word2 = ep_load(line2);
        *sums++ = ep_on_left(taps, bias, word0, word1, word2);
        *sums++ = ep_on_right(taps, bias, word0, word1, word2);
        line0 += 2, line1 += 2, line2 += 2;
    }
    if (start == 0 && i == 0) {
        *sums++ = ep_on_left(taps, bias, ep_load(line0), ep_load(line1), ep_load(line2));
        line0 += stride, line1 += stride, line2 += stride;
        i++;
    }
    for (; i < count; i++) {
        *sums++ = ep_on_right(taps, bias, ep_load(line0 - 1), ep_load(line1 - 1), ep_load(line2 - 1));
        line0 += stride, line1 += stride, line2 += stride;
    }
}

#else

struct ep_taps_3x3 {
    const int8_t *filter;
};

static inline struct ep_taps_3x3 ep_pack_taps(const int8_t *filter)
{
    return (struct ep_taps_3x3){filter};
}

/* Sums of `count` windows of 3x3 without gaps, `stride` columns apart; the first begins at `start`. */
static EP_NOINLINE void ep_sum_3x3(const struct ep_taps_3x3 *taps, uint32_t bias, const int8_t *line0,
                                   const int8_t *line1, const int8_t *line2, int32_t start, int32_t stride,
                                   int32_t count, uint32_t *sums)
{
    const int8_t *filter = taps->filter;
    line0 += start, line1 += start, line2 += start;
    const int32_t w0 = filter[0], w1 = filter[1], w2 = filter[2], w3 = filter[3], w4 = filter[4];
    const int32_t w5 = filter[5], w6 = filter[6], w7 = filter[7], w8 = filter[8];
    for (int32_t i = 0; i < count; i++) {
        uint32_t sum = bias;
        sum += ep_product(w0, line0[0]);
        sum += ep_product(w1, line0[1]);
        sum += ep_product(w2, line0[2]);
        sum += ep_product(w3, line1[0]);
        sum += ep_product(w4, line1[1]);
        sum += ep_product(w5, line1[2]);
        sum += ep_product(w6, line2[0]);
        sum += ep_product(w7, line2[1]);
        sum += ep_product(w8, line2[2]);
        sums[i] = sum;
        line0 += stride, line1 += stride, line2 += stride;
    }
}

#endif

#endif
