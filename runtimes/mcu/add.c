#include "sum.h"
#include "vector.h"

/* A row of elements; the sum's parameters are a copy, which no store of a code could have changed. */
static void add_row(struct ep_sum sum, const int8_t *first, int32_t by, const int8_t *second, int32_t also,
                    int32_t count, int8_t *output)
{
#ifdef EP_MVE
    const uint32x4_t numbers = vidupq_n_u32(0, 1);
    const uint32x4_t places = vmulq_n_u32(numbers, (uint32_t)by), others = vmulq_n_u32(numbers, (uint32_t)also);
    for (int32_t i = 0; i < count; i += 4) {
        const mve_pred16_t left = vctp32q((uint32_t)(count - i));
        const int32x4_t a = vldrbq_gather_offset_z_s32(first + i * by, places, left);
        const int32x4_t b = vldrbq_gather_offset_z_s32(second + i * also, others, left);
        vstrbq_p_s32(output + i, ep_sums_of(&sum, a, b), left);
    }
#else
    for (int32_t i = 0; i < count; i++)
        output[i] = ep_sum_of(&sum, first[i * by], second[i * also]);
#endif
}

void ep_add(const struct ep_add *layer, const int8_t *first, const int8_t *second, int8_t *output)
{
    const int32_t *size = layer->size, *by = layer->first, *also = layer->second;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++)
            for (int32_t k = 0; k < size[2]; k++) {
                add_row(layer->sum, first + i * by[0] + j * by[1] + k * by[2], by[3],
                        second + i * also[0] + j * also[1] + k * also[2], also[3], size[3], output);
                output += size[3];
            }
}
