#include "fixed_point.h"
#include "kernels.h"

/* Bits before the point of a sum of exponentials: none of them exceeds 1. */
#define SUM_INTEGER_BITS 12

static int32_t doubled(int32_t value, int32_t times)
{
    const int64_t shifted = (int64_t)value * (1 << times);
    return shifted > INT32_MAX ? INT32_MAX : shifted < INT32_MIN ? INT32_MIN : (int32_t)shifted;
}

/* 1 / (1 + value) for a value from 0 to 1 in Q31: gemmlowp's three steps of Newton and Raphson, in Q29. */
static int32_t reciprocal_of_one_plus(int32_t value)
{
    const int32_t half = (int32_t)(((int64_t)value + INT32_MAX + 1) >> 1);
    int32_t x = 1515870810 + ep_high_product(half, -1010580540); /* 48/17 - 32/17 * half */
    for (int i = 0; i < 3; i++)
        x += doubled(ep_high_product(x, (1 << 29) - ep_high_product(half, x)), 2);
    return doubled(x, 1);
}

static int leading_zeros(uint32_t value)
{
    int zeros = 0;
    for (; value < 1u << 31; zeros++)
        value <<= 1;
    return zeros;
}

static int32_t highest_of(const int8_t *codes, int32_t count)
{
    int32_t highest = codes[0];
    for (int32_t i = 1; i < count; i++)
        highest = codes[i] > highest ? codes[i] : highest;
    return highest;
}

void ep_softmax(const struct ep_softmax *layer, const int8_t *input, int8_t *output)
{
    for (int32_t row = 0; row < layer->rows; row++) {
        const int32_t highest = highest_of(input, layer->columns);
        uint32_t sum = 0;
        for (int32_t i = 0; i < layer->columns; i++)
            sum += (uint32_t)ep_divide_by_power(layer->exponentials[highest - input[i]], SUM_INTEGER_BITS);
        const int zeros = leading_zeros(sum);
        const int32_t scale = reciprocal_of_one_plus((int32_t)((sum << zeros) - (1u << 31)));
        /* The sum is (1 + value) * 2^(SUM_INTEGER_BITS - zeros); the output has 8 bits. */
        const int32_t shift = SUM_INTEGER_BITS - zeros + 31 - 8;
        for (int32_t i = 0; i < layer->columns; i++) {
            const int32_t share = ep_high_product(scale, layer->exponentials[highest - input[i]]);
            const int32_t steps = shift > 31 ? 0 : ep_divide_by_power(share, shift);
            output[i] = (int8_t)ep_clamp(steps + INT8_MIN, INT8_MIN, INT8_MAX);
        }
        input += layer->columns;
        output += layer->columns;
    }
}
