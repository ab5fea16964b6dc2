#include "kernels.h"

void ep_lookup(const struct ep_lookup *layer, const int8_t *input, int8_t *output)
{
    for (int32_t i = 0; i < layer->size; i++)
        output[i] = layer->table[(uint8_t)input[i]];
}
