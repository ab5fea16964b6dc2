/* Requantisation and sums for four elements at a time, with the vectors of Cortex-M55. */
#ifndef EDGEPIPE_VECTOR_H
#define EDGEPIPE_VECTOR_H

#include "instructions.h"

#ifdef EP_MVE

#include <arm_mve.h>

#include "sum.h"

/* ep_rescale. */
static inline int32x4_t ep_rescale_vector(int32x4_t value, int32x4_t multiplier, int32x4_t shift)
{
    const int32x4_t left = vmaxq_s32(shift, vdupq_n_s32(0)), right = vminq_s32(shift, vdupq_n_s32(0));
    const int32x4_t product = vqrdmulhq_s32(vshlq_s32(value, left), multiplier);
    /* Shifting rounds ties upwards: below zero they must go down. */
    const int32x4_t away = vshrq_n_s32(vandq_s32(product, right), 31);
    return vrshlq_s32(vqaddq_s32(product, away), right);
}

static inline int32x4_t ep_clamp_vector(int32x4_t value, int32_t lowest, int32_t highest)
{
    return vminq_s32(vmaxq_s32(value, vdupq_n_s32(lowest)), vdupq_n_s32(highest));
}

/* ep_to_code, clamped. */
static inline int32x4_t ep_to_codes(int32x4_t sum, int32x4_t multiplier, int32x4_t shift, int32_t zero_point,
                                    int32_t lowest, int32_t highest)
{
    return ep_clamp_vector(vaddq_n_s32(ep_rescale_vector(sum, multiplier, shift), zero_point), lowest, highest);
}

static inline int32x4_t ep_scaled_terms(const struct ep_term *term, int32x4_t code)
{
    const int32x4_t value = vshlq_n_s32(vsubq_n_s32(code, term->zero_point), EP_SUM_FRACTION);
    return ep_rescale_vector(value, vdupq_n_s32(term->multiplier), vdupq_n_s32(term->shift));
}

/* ep_sum_of. */
static inline int32x4_t ep_sums_of(const struct ep_sum *sum, int32x4_t first, int32x4_t second)
{
    const int32x4_t value = vaddq_s32(ep_scaled_terms(&sum->first, first), ep_scaled_terms(&sum->second, second));
    return ep_to_codes(value, vdupq_n_s32(sum->multiplier), vdupq_n_s32(sum->shift), sum->zero_point, sum->lowest,
                       sum->highest);
}

#endif

#endif
