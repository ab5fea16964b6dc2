/* Adding two codes of different scales, as TFLite's ADD does: no multiplier exceeds 1. */
#ifndef EDGEPIPE_SUM_H
#define EDGEPIPE_SUM_H

#include "fixed_point.h"
#include "kernels.h"

/* Bits of fraction that the operands get. */
#define EP_SUM_FRACTION 20

static inline int32_t ep_scaled_term(const struct ep_term *term, int32_t code)
{
    const int32_t value = (code - term->zero_point) * (1 << EP_SUM_FRACTION);
    return ep_divide_by_power(ep_high_product_of_small(value, term->multiplier), -term->shift);
}

static inline int8_t ep_sum_of(const struct ep_sum *sum, int32_t first, int32_t second)
{
    const int32_t value = ep_scaled_term(&sum->first, first) + ep_scaled_term(&sum->second, second);
    const int32_t code = ep_divide_by_power(ep_high_product_of_small(value, sum->multiplier), -sum->shift);
    return (int8_t)ep_clamp(code + sum->zero_point, sum->lowest, sum->highest);
}

#endif
