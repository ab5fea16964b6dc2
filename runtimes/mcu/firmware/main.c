/* A firmware that does nothing but to run its model for a host. */
#include "board.h"
#include "commands.h"
#include "protocol.h"

int main(void)
{
    ep_greet();
    for (;;) {
        const int byte = edgepipe_getchar();
        if (byte >= 0)
            ep_receive((uint8_t)byte);
        else
            edgepipe_wait();
    }
}
