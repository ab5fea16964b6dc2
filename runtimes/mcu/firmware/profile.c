#ifdef EDGEPIPE_PROFILE
#include "profile.h"

#include <string.h>

#include "board.h"

struct edgepipe_layer edgepipe_layers[EDGEPIPE_LAYERS];
static struct edgepipe_layer *current;
static uint32_t since;

void edgepipe_reset_layers(void)
{
    memset(edgepipe_layers, 0, sizeof edgepipe_layers);
    current = NULL;
}

void edgepipe_end_layer(void)
{
    if (current != NULL)
        current->microseconds += edgepipe_microseconds() - since;
    current = NULL;
}

void edgepipe_begin_layer(unsigned number, const char *name)
{
    edgepipe_end_layer();
    current = &edgepipe_layers[number];
    current->name = name;
    current->calls++;
    since = edgepipe_microseconds();
}
#else
typedef int edgepipe_no_profile; /* ISO C wants a declaration */
#endif
