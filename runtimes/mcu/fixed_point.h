/* The fixed-point arithmetic of gemmlowp that TFLite's reference kernels are made of: every rescaling rounds twice. */
#ifndef EDGEPIPE_FIXED_POINT_H
#define EDGEPIPE_FIXED_POINT_H

#include <stdint.h>

#include "instructions.h"

/* The upper half of twice the product, ties rounded up; not both factors may be the lowest number. */
static inline int32_t ep_high_product(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);
}

/* The same for an `a` of at most 30 bits. */
static inline int32_t ep_high_product_of_small(int32_t a, int32_t b)
{
#ifdef EP_DSP
    return ep_smmulr(2 * a, b);
#else
    return ep_high_product(a, b);
#endif
}

/* value / 2^exponent, ties away from zero. */
static inline int32_t ep_divide_by_power(int32_t value, int32_t exponent)
{
    if (exponent == 0)
        return value;
    return (((value + (value >> 31)) >> (exponent - 1)) + 1) >> 1;
}

/* value * multiplier / 2^31 * 2^shift. Bits that the shift to the left pushes out are lost, as in TFLite. */
static inline int32_t ep_rescale(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift > 0)
        return ep_high_product((int32_t)((uint32_t)value << shift), multiplier);
    return ep_divide_by_power(ep_high_product(value, multiplier), -shift);
}

static inline int32_t ep_clamp(int32_t value, int32_t lowest, int32_t highest)
{
    value = value < lowest ? lowest : value;
    return value > highest ? highest : value;
}

/* To a code, wherever no activation is fused: one instruction where there is one. */
static inline int8_t ep_saturate(int32_t value)
{
#ifdef EP_DSP
    return (int8_t)ep_ssat8(value);
#else
    return (int8_t)ep_clamp(value, INT8_MIN, INT8_MAX);
#endif
}

/* ep_rescale where it is seldom needed, so that it takes no registers from a loop. */
static EP_NOINLINE EP_UNUSED int32_t ep_rescale_apart(int32_t value, int32_t multiplier, int32_t shift)
{
    return ep_rescale(value, multiplier, shift);
}

/* The code for a sum of products, before it is clamped to the activation range; always the right one after. */
static inline int32_t ep_to_code(int32_t sum, int32_t multiplier, int32_t shift, int32_t zero_point)
{
#ifdef EP_DSP
    /* Doubling saturates: a sum that large ends at one of the limits anyway, unless it is shifted further than 21. */
    if ((uint32_t)~shift <= 20) {
        const int32_t product = ep_smmulr(ep_qadd(sum, sum), multiplier);
        return (((product + (product >> 31)) >> ~shift) + (1 + 2 * zero_point)) >> 1;
    }
    return ep_rescale_apart(sum, multiplier, shift) + zero_point;
#else
    return ep_rescale(sum, multiplier, shift) + zero_point;
#endif
}

#endif
