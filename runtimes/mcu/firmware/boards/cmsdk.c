/* UART 0 of Arm's MPS boards: the CMSDK APB UART. */
#include "board.h"

#if __ARM_ARCH == 8
#define UART0 0x59303000 /* Corstone-300, secure */
#else
#define UART0 0x40004000
#endif

#define REGISTER(offset) (*(volatile uint32_t *)(UART0 + (offset)))
#define DATA REGISTER(0)
#define STATE REGISTER(4)
#define CTRL REGISTER(8)
#define BAUDDIV REGISTER(16)

enum { TX_FULL = 1, RX_FULL = 2, TX_ENABLE = 1, RX_ENABLE = 2 };

void edgepipe_board_init(void)
{
    BAUDDIV = EDGEPIPE_CLOCK_MHZ * 1000000u / EDGEPIPE_BAUD;
    CTRL = TX_ENABLE | RX_ENABLE;
}

int edgepipe_getchar(void)
{
    return STATE & RX_FULL ? (int)(DATA & 0xff) : -1;
}

void edgepipe_putchar(int byte)
{
    while (STATE & TX_FULL) {
    }
    DATA = (uint32_t)byte & 0xff;
}
