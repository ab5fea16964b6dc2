/* Where the time of an inference goes, layer by layer: built with EDGEPIPE_PROFILE, which needs a board's clock. */
#ifndef EDGEPIPE_PROFILE_H
#define EDGEPIPE_PROFILE_H

#include <stdint.h>

#include "model.h"

struct edgepipe_layer {
    const char *name; /* NULL while it has not run */
    uint32_t microseconds, calls;
};

/* Since the last edgepipe_reset_layers. */
extern struct edgepipe_layer edgepipe_layers[EDGEPIPE_LAYERS];

void edgepipe_reset_layers(void);
void edgepipe_begin_layer(unsigned number, const char *name);
void edgepipe_end_layer(void);

#endif
