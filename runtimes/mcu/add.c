#include "sum.h"

void ep_add(const struct ep_add *layer, const int8_t *first, const int8_t *second, int8_t *output)
{
    const int32_t *size = layer->size, *by = layer->first, *also = layer->second;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++)
            for (int32_t k = 0; k < size[2]; k++) {
                const int8_t *a = first + i * by[0] + j * by[1] + k * by[2];
                const int8_t *b = second + i * also[0] + j * also[1] + k * also[2];
                for (int32_t l = 0; l < size[3]; l++)
                    *output++ = ep_sum_of(&layer->sum, a[l * by[3]], b[l * also[3]]);
            }
}
