#include "profile.h"

#include <string.h>

#include "board.h"

enum { NONE = EDGEPIPE_LAYERS };

uint64_t edgepipe_layer_cycles[EDGEPIPE_LAYERS];
uint32_t edgepipe_layer_calls[EDGEPIPE_LAYERS];
static unsigned current = NONE;
static uint64_t since;

void edgepipe_reset_layers(void)
{
    memset(edgepipe_layer_cycles, 0, sizeof edgepipe_layer_cycles);
    memset(edgepipe_layer_calls, 0, sizeof edgepipe_layer_calls);
    current = NONE;
}

void edgepipe_end_layer(void)
{
    if (current != NONE)
        edgepipe_layer_cycles[current] += edgepipe_cycles() - since;
    current = NONE;
}

void edgepipe_begin_layer(unsigned number)
{
    edgepipe_end_layer();
    current = number;
    edgepipe_layer_calls[number]++;
    since = edgepipe_cycles();
}
