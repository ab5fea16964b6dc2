/* A board whose serial port is standard input and output, with a model whose output is a hash of every byte of every
 * patch in order. TILES in the environment says how many there are; 1 stands for a model that takes the whole image. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "edgepipe_model.h"
#include "model_parts.h"

const char *const edgepipe_layer_names[EDGEPIPE_LAYERS] = {"HASH of a patch", "NOISE of the hash"};

/* As in an arena, the output takes the place of the patches. */
static int8_t arena[EDGEPIPE_OUTPUT_BYTES];
static unsigned pushed;
static uint64_t hash;
static uint64_t cycles;

int edgepipe_getchar(void)
{
    fflush(stdout);
    struct pollfd port = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&port, 1, 10) == 0)
        return -1;
    uint8_t byte;
    if (read(STDIN_FILENO, &byte, 1) != 1)
        exit(0);
    return byte;
}

void edgepipe_wait(void)
{
    /* edgepipe_getchar has waited. */
}

static int is_deaf(void)
{
    static int deaf = -1;
    if (deaf < 0)
        deaf = getenv("DEAF") != NULL;
    return deaf;
}

/* A deaf board sends at 115200 baud and loses what comes meanwhile, as one does that polls a port without a buffer. */
void edgepipe_putchar(int byte)
{
    putchar(byte);
    if (!is_deaf())
        return;
    fflush(stdout);
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    struct pollfd port = {.fd = STDIN_FILENO, .events = POLLIN};
    uint8_t lost[4096];
    if (poll(&port, 1, 0) == 1 && (port.revents & POLLIN) && read(STDIN_FILENO, lost, sizeof lost) <= 0)
        exit(0);
}

uint64_t edgepipe_cycles(void)
{
    return cycles;
}

bool edgepipe_is_emulated(void)
{
    return false;
}

size_t edgepipe_stack_bytes(void)
{
    return 4096;
}

size_t edgepipe_stack_peak_bytes(void)
{
    return 512;
}

void edgepipe_paint_arena(void)
{
    memset(arena, 0x5a, sizeof arena);
}

size_t edgepipe_arena_peak_bytes(void)
{
    return 700;
}

void edgepipe_init(void)
{
    pushed = 0;
    hash = 1;
}

unsigned edgepipe_tiles(void)
{
    const char *const tiles = getenv("TILES");
    return tiles == NULL ? EDGEPIPE_TILES : (unsigned)atoi(tiles);
}

size_t edgepipe_patch_bytes(unsigned tile)
{
    if (tile >= edgepipe_tiles())
        return 0;
    return edgepipe_tiles() == 1 ? EDGEPIPE_INPUT_BYTES : 40 + tile * 37 % 161;
}

int8_t *edgepipe_patch(void)
{
    return pushed < edgepipe_tiles() ? arena : NULL;
}

int edgepipe_push_patch(unsigned tile)
{
    if (tile != pushed || tile >= edgepipe_tiles())
        return -1;
    EP_LAYER(0);
    for (size_t i = 0; i < edgepipe_patch_bytes(tile); i++)
        hash = hash * 6364136223846793005u + (uint8_t)arena[i] + 1;
    memset(arena, 0x77, sizeof arena);
    fflush(stdout);
    const char *const ms = getenv("COMPUTE_MS");
    if (ms != NULL)
        nanosleep(&(struct timespec){atoi(ms) / 1000, atoi(ms) % 1000 * 1000000}, NULL);
    pushed++;
    cycles += 1000 * EDGEPIPE_CLOCK_MHZ;
    EP_END_LAYER();
    return 0;
}

const int8_t *edgepipe_finish(void)
{
    if (pushed < edgepipe_tiles())
        return NULL;
    EP_LAYER(1);
    for (size_t i = 0; i < sizeof arena; i++) {
        hash = hash * 6364136223846793005u + 1;
        arena[i] = (int8_t)(hash >> 56);
    }
    cycles += 500 * EDGEPIPE_CLOCK_MHZ;
    EP_END_LAYER();
    return arena;
}
