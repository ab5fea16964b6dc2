#include "edgepipe_model.h"

#include <string.h>

#include "model_parts.h"

enum { PAINT = 0x5a };

static unsigned next_tile;
static int finished;

void edgepipe_init(void)
{
    next_tile = 0;
    finished = 0;
}

unsigned edgepipe_tiles(void)
{
    return EDGEPIPE_TILES;
}

size_t edgepipe_patch_bytes(unsigned tile)
{
    return tile < EDGEPIPE_TILES ? ep_tiles[tile].patch_bytes : 0;
}

int8_t *edgepipe_patch(void)
{
    return next_tile < EDGEPIPE_TILES ? ep_arena + ep_tiles[next_tile].patch_offset : NULL;
}

int edgepipe_push_patch(unsigned tile)
{
    if (tile != next_tile || tile >= EDGEPIPE_TILES)
        return -1;
    ep_tiles[tile].run();
    EP_END_LAYER();
    next_tile++;
    return 0;
}

const int8_t *edgepipe_finish(void)
{
    if (next_tile < EDGEPIPE_TILES)
        return NULL;
    if (!finished) {
        ep_tail();
        EP_END_LAYER();
        finished = 1;
    }
    return ep_arena + EDGEPIPE_OUTPUT_OFFSET;
}

void edgepipe_paint_arena(void)
{
    memset(ep_arena, PAINT, EDGEPIPE_ARENA_BYTES);
}

size_t edgepipe_arena_peak_bytes(void)
{
    size_t peak = EDGEPIPE_ARENA_BYTES;
    while (peak > 0 && ep_arena[peak - 1] == PAINT)
        peak--;
    return peak;
}
