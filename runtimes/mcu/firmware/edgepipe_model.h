/* The model of a bundle, for any firmware: compile model.c and the kernels beside it, and call
 *
 *     edgepipe_init();
 *     for (unsigned tile = 0; tile < edgepipe_tiles(); tile++) {
 *         ... write edgepipe_patch_bytes(tile) bytes, the tile's window of the image, to edgepipe_patch() ...
 *         edgepipe_push_patch(tile);
 *     }
 *     const int8_t *output = edgepipe_finish();
 *
 * Windows and output are codes, NHWC, int8 or uint8 as model.h says; which window of the image a tile takes is in the
 * bundle's plan.json. A model that does not run patch by patch has one tile, whose window is the image.
 *
 * Everything lies in one arena: what is written to the patch buffer takes the place of an earlier output. Nothing here
 * may run in an interrupt while another call runs.
 */
#ifndef EDGEPIPE_MODEL_H
#define EDGEPIPE_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* EDGEPIPE_MODEL_HASH           64 hexadecimal digits: two builds with the same compute the same
 * EDGEPIPE_TILES                tiles of the stage that runs patch by patch, 1 if there is none
 * EDGEPIPE_LARGEST_PATCH_BYTES  of all tiles
 * EDGEPIPE_INPUT_BYTES          of the whole image
 * EDGEPIPE_OUTPUT_BYTES         of the output: an element is a byte
 * EDGEPIPE_ARENA_BYTES          as planned
 * EDGEPIPE_INPUT_UNSIGNED, EDGEPIPE_OUTPUT_UNSIGNED  1 if codes are uint8
 * EDGEPIPE_OUTPUT_SCALE, EDGEPIPE_OUTPUT_ZERO_POINT  real = scale * (code - zero point) */
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begin an inference; one that has begun is dropped. */
void edgepipe_init(void);

unsigned edgepipe_tiles(void);

/* Bytes of a tile's window; 0 if there is no such tile. */
size_t edgepipe_patch_bytes(unsigned tile);

/* Where the window of the next tile is to be written, or NULL if all have been pushed. */
int8_t *edgepipe_patch(void);

/* Compute a tile from the window in the patch buffer. Tiles come in order: 0, or -1 if it is not this one's turn, and
 * then nothing has changed. */
int edgepipe_push_patch(unsigned tile);

/* The output, or NULL while tiles are missing. It stays until the next inference begins. */
const int8_t *edgepipe_finish(void);

/* Fill the arena with a pattern, between inferences. */
void edgepipe_paint_arena(void);

/* Bytes from the arena's beginning to the last that is no longer as it was painted. */
size_t edgepipe_arena_peak_bytes(void);

#ifdef __cplusplus
}
#endif

#endif
