/* Dot products of two filters with two pixels, or with one: each code that is loaded is used twice. */
#ifndef EDGEPIPE_DOT_H
#define EDGEPIPE_DOT_H

#include <stdint.h>

#include "instructions.h"

#ifdef EP_MVE
#include <arm_mve.h>
#endif

static inline uint32_t ep_product(int32_t a, int32_t b)
{
    return (uint32_t)(a * b);
}

/* sums[0] and [1] += filters 0 and 1 times pixel 0; sums[2] and [3] += the same times pixel 1. Sums wrap. */
static inline void ep_dot_2x2(const int8_t *filter0, const int8_t *filter1, const int8_t *pixel0, const int8_t *pixel1,
                              int32_t length, uint32_t sums[4])
{
#ifdef EP_MVE
    int32_t sum0 = (int32_t)sums[0], sum1 = (int32_t)sums[1], sum2 = (int32_t)sums[2], sum3 = (int32_t)sums[3];
    for (int32_t i = 0; i < length; i += 16) {
        const mve_pred16_t left = vctp8q((uint32_t)(length - i));
        const int8x16_t w0 = vldrbq_z_s8(filter0 + i, left), w1 = vldrbq_z_s8(filter1 + i, left);
        const int8x16_t x0 = vldrbq_z_s8(pixel0 + i, left), x1 = vldrbq_z_s8(pixel1 + i, left);
        sum0 = vmladavaq_s8(sum0, w0, x0);
        sum1 = vmladavaq_s8(sum1, w1, x0);
        sum2 = vmladavaq_s8(sum2, w0, x1);
        sum3 = vmladavaq_s8(sum3, w1, x1);
    }
    sums[0] = (uint32_t)sum0, sums[1] = (uint32_t)sum1, sums[2] = (uint32_t)sum2, sums[3] = (uint32_t)sum3;
#else
    int32_t i = 0;
#ifdef EP_DSP
    for (; i + 4 <= length; i += 4) {
        const uint32_t w0 = ep_load(filter0 + i), w1 = ep_load(filter1 + i);
        const uint32_t x0 = ep_load(pixel0 + i), x1 = ep_load(pixel1 + i);
        const uint32_t even0 = ep_even(x0), even1 = ep_even(x1), odd0 = ep_odd(x0), odd1 = ep_odd(x1);
        sums[0] = ep_smlad(ep_odd(w0), odd0, ep_smlad(ep_even(w0), even0, sums[0]));
        sums[1] = ep_smlad(ep_odd(w1), odd0, ep_smlad(ep_even(w1), even0, sums[1]));
        sums[2] = ep_smlad(ep_odd(w0), odd1, ep_smlad(ep_even(w0), even1, sums[2]));
        sums[3] = ep_smlad(ep_odd(w1), odd1, ep_smlad(ep_even(w1), even1, sums[3]));
    }
#endif
#pragma GCC unroll 4
    for (; i < length; i++) {
        const int32_t w0 = filter0[i], w1 = filter1[i], x0 = pixel0[i], x1 = pixel1[i];
        sums[0] += ep_product(w0, x0);
        sums[1] += ep_product(w1, x0);
        sums[2] += ep_product(w0, x1);
        sums[3] += ep_product(w1, x1);
    }
#endif
}

/* sums[0] and [1] += filters 0 and 1 times the pixel. */
static inline void ep_dot_2x1(const int8_t *filter0, const int8_t *filter1, const int8_t *pixel, int32_t length,
                              uint32_t sums[2])
{
#ifdef EP_MVE
    int32_t sum0 = (int32_t)sums[0], sum1 = (int32_t)sums[1];
    for (int32_t i = 0; i < length; i += 16) {
        const mve_pred16_t left = vctp8q((uint32_t)(length - i));
        const int8x16_t x = vldrbq_z_s8(pixel + i, left);
        sum0 = vmladavaq_s8(sum0, vldrbq_z_s8(filter0 + i, left), x);
        sum1 = vmladavaq_s8(sum1, vldrbq_z_s8(filter1 + i, left), x);
    }
    sums[0] = (uint32_t)sum0;
    sums[1] = (uint32_t)sum1;
#else
#ifdef EP_DSP
    for (; length >= 4; length -= 4) {
        const uint32_t w0 = ep_load(filter0), w1 = ep_load(filter1), x = ep_load(pixel);
        const uint32_t even = ep_even(x), odd = ep_odd(x);
        sums[0] = ep_smlad(ep_odd(w0), odd, ep_smlad(ep_even(w0), even, sums[0]));
        sums[1] = ep_smlad(ep_odd(w1), odd, ep_smlad(ep_even(w1), even, sums[1]));
        filter0 += 4, filter1 += 4, pixel += 4;
    }
#endif
#pragma GCC unroll 4
    for (int32_t i = 0; i < length; i++) {
        const int32_t w0 = filter0[i], w1 = filter1[i], x = pixel[i];
        sums[0] += ep_product(w0, x);
        sums[1] += ep_product(w1, x);
    }
#endif
}

#endif
