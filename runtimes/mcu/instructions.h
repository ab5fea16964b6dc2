/* The switch between portable C, the DSP extension (Cortex-M4, M7, M33) and MVE (Cortex-M55), and what C lacks. */
#ifndef EDGEPIPE_INSTRUCTIONS_H
#define EDGEPIPE_INSTRUCTIONS_H

#include <stdint.h>
#include <string.h>

#if defined(EDGEPIPE_PORTABLE)
#elif defined(__ARM_FEATURE_MVE)
#define EP_MVE 1
#elif defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_UNALIGNED)
#define EP_DSP 1
#endif

#define EP_NOINLINE __attribute__((noinline))
#define EP_UNUSED __attribute__((unused))

#ifdef EP_DSP

/* Four codes from any address. */
static inline uint32_t ep_load(const int8_t *codes)
{
    uint32_t word;
    memcpy(&word, codes, sizeof word);
    return word;
}

/* Bytes 0 and 2, and bytes 1 and 3, as pairs of int16. */
static inline uint32_t ep_even(uint32_t word)
{
    uint32_t pair;
    __asm__("sxtb16 %0, %1" : "=r"(pair) : "r"(word));
    return pair;
}

static inline uint32_t ep_odd(uint32_t word)
{
    uint32_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(word));
    return pair;
}

static inline uint32_t ep_pack(int32_t low, int32_t high)
{
    return ((uint32_t)low & 0xffff) | (uint32_t)high << 16;
}

/* sum + a.low * b.low + a.high * b.high, wrapping. */
static inline uint32_t ep_smlad(uint32_t a, uint32_t b, uint32_t sum)
{
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

static inline uint32_t ep_smlabb(uint32_t a, uint32_t b, uint32_t sum)
{
    __asm__("smlabb %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

static inline uint32_t ep_smlatb(uint32_t a, uint32_t b, uint32_t sum)
{
    __asm__("smlatb %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

static inline uint32_t ep_smlatt(uint32_t a, uint32_t b, uint32_t sum)
{
    __asm__("smlatt %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

static inline uint32_t ep_smlabt(uint32_t a, uint32_t b, uint32_t sum)
{
    __asm__("smlabt %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* The upper half of the product, ties rounded up. */
static inline int32_t ep_smmulr(int32_t a, int32_t b)
{
    int32_t high;
    __asm__("smmulr %0, %1, %2" : "=r"(high) : "r"(a), "r"(b));
    return high;
}

static inline int32_t ep_ssat8(int32_t value)
{
    int32_t code;
    __asm__("ssat %0, #8, %1" : "=r"(code) : "r"(value));
    return code;
}

static inline int32_t ep_qadd(int32_t a, int32_t b)
{
    int32_t sum;
    __asm__("qadd %0, %1, %2" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

#endif

#endif
