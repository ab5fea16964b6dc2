/* What model.c, written by the exporter, gives to edgepipe_model.c. */
#ifndef EDGEPIPE_MODEL_PARTS_H
#define EDGEPIPE_MODEL_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"

struct ep_tile {
    void (*run)(void);
    uint32_t patch_offset, patch_bytes; /* of its window, in the arena */
};

extern int8_t ep_arena[EDGEPIPE_ARENA_BYTES];
extern const struct ep_tile ep_tiles[EDGEPIPE_TILES];

/* What comes after the last tile. */
void ep_tail(void);

/* EP_LAYER says of which layer the call that follows is; with EDGEPIPE_PROFILE, cycles count for it from here on. */
#ifdef EDGEPIPE_PROFILE
#include "profile.h"
#define EP_LAYER(number) edgepipe_begin_layer(number)
#define EP_END_LAYER() edgepipe_end_layer()
#else
#define EP_LAYER(number) ((void)0)
#define EP_END_LAYER() ((void)0)
#endif

#endif
