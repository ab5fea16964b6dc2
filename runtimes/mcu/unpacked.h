/* For the DSP extension: codes of two pixels are kept as int16, so as not to be unpacked again for each filter. */
#ifndef EDGEPIPE_UNPACKED_H
#define EDGEPIPE_UNPACKED_H

#include "instructions.h"

#ifdef EP_DSP

/* Groups of four codes of two pixels, as pairs of int16: the even ones of both, the odd ones of both. */
static inline void ep_unpack(const int8_t *pixel0, const int8_t *pixel1, int32_t length, uint32_t *unpacked)
{
    for (int32_t i = 0; i < length; i += 4) {
        const uint32_t word0 = ep_load(pixel0 + i), word1 = ep_load(pixel1 + i);
        *unpacked++ = ep_even(word0);
        *unpacked++ = ep_even(word1);
        *unpacked++ = ep_odd(word0);
        *unpacked++ = ep_odd(word1);
    }
}

/* ep_dot_2x2 with unpacked pixels, `length` a multiple of 4 and not 0. In one piece, since it takes every register
 * there is: 16 products in 16 instructions, and two to go on. */
static inline void ep_dot_unpacked(const int8_t *filter0, const int8_t *filter1, const uint32_t *pixels, int32_t length,
                                   uint32_t sums[4])
{
    const int8_t *end = filter0 + length;
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
            : [filter0] "+r"(filter0), [filter1] "+r"(filter1), [pixels] "+r"(pixels), [sum0] "+r"(sums[0]),
              [sum1] "+r"(sums[1]), [sum2] "+r"(sums[2]), [sum3] "+r"(sums[3]), [w0] "=&r"(w0), [w1] "=&r"(w1),
              [pair] "=&r"(pair), [x0] "=&r"(x0), [x1] "=&r"(x1)
            : [end] "r"(end)
            : "cc", "memory");
}

#endif

#endif
