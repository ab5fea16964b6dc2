/* Where the cycles of an inference go, layer by layer: model.c tells when it is built with EDGEPIPE_PROFILE. */
#ifndef EDGEPIPE_PROFILE_H
#define EDGEPIPE_PROFILE_H

#include <stdint.h>

#include "model.h"

/* Of each layer, since the last edgepipe_reset_layers; edgepipe_layer_names in model.c says which they are. */
extern uint64_t edgepipe_layer_cycles[EDGEPIPE_LAYERS];
extern uint32_t edgepipe_layer_calls[EDGEPIPE_LAYERS];
extern const char *const edgepipe_layer_names[EDGEPIPE_LAYERS];

void edgepipe_reset_layers(void);
void edgepipe_begin_layer(unsigned number);
void edgepipe_end_layer(void);

#endif
