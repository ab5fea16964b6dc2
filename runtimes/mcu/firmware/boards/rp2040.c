/* RP2040: 133 MHz from its 12 MHz crystal, UART0 on GPIO 0 (out) and 1 (in). */
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CLEAR(address) REGISTER((address) + 0x3000) /* bits to clear in a register */
#define RESETS 0x4000c000
#define RESETS_DONE REGISTER(0x4000c008)
#define CLK_REF_CTRL REGISTER(0x40008030)
#define CLK_REF_SELECTED REGISTER(0x40008038)
#define CLK_SYS_CTRL REGISTER(0x4000803c)
#define CLK_SYS_SELECTED REGISTER(0x40008044)
#define CLK_PERI_CTRL REGISTER(0x40008048)
#define XOSC_CTRL REGISTER(0x40024000)
#define XOSC_STATUS REGISTER(0x40024004)
#define XOSC_STARTUP REGISTER(0x4002400c)
#define PLL_CS REGISTER(0x40028000)
#define PLL_PWR 0x40028004
#define PLL_FBDIV REGISTER(0x40028008)
#define PLL_PRIM REGISTER(0x4002800c)
#define GPIO_CTRL(pin) REGISTER(0x40014004 + 8 * (pin))
#define UART_DR REGISTER(0x40034000)
#define UART_FR REGISTER(0x40034018)
#define UART_IBRD REGISTER(0x40034024)
#define UART_FBRD REGISTER(0x40034028)
#define UART_LCR_H REGISTER(0x4003402c)
#define UART_CR REGISTER(0x40034030)

enum { IO_BANK = 1 << 5, PADS_BANK = 1 << 8, PLL_SYS = 1 << 12, UART_0 = 1 << 22 };
enum { RX_EMPTY = 1 << 4, TX_FULL = 1 << 5 };

/* The ROM copies the first 256 bytes of flash to RAM and runs them if their last word is their checksum. They set the
 * flash up for reading in place, with the command that every chip knows (03h), and start what follows:
 *     ldr r3, =0x18000000; movs r1, #0; str r1, [r3, #8]       SSI off
 *     movs r1, #4; str r1, [r3, #0x14]                         a quarter of the clock
 *     ldr r1, =0x001f0300; str r1, [r3]                        words of 32 bits, read after a command
 *     ldr r1, =0x03000218; ldr r0, =0x180000f4; str r1, [r0]   the command, 24 bits of address
 *     movs r1, #0; str r1, [r3, #4]; movs r1, #1; str r1, [r3, #8]
 *     ldr r0, =0x10000100; ldr r1, =0xe000ed08; str r0, [r1]   VTOR
 *     ldmia r0, {r0, r1}; msr msp, r0; bx r1 */
__attribute__((section(".boot2"), used)) static const uint32_t boot2[64] = {
    0x21004b0a, 0x21046099, 0x49096159, 0x49096019, 0x60014809, 0x60592100, 0x60992101, 0x49084807,
    0xc8036008, 0x8808f380, 0x46c04708, 0x18000000, 0x001f0300, 0x03000218, 0x180000f4, 0x10000100,
    0xe000ed08,
    [63] = 0x42136556,
};

static void use_pll(void)
{
    XOSC_STARTUP = 47; /* about a millisecond */
    XOSC_CTRL = 0xfab << 12 | 0xaa0;
    while (!(XOSC_STATUS & 1u << 31)) {
    }
    CLK_REF_CTRL = 2;
    while (CLK_REF_SELECTED != 1 << 2) {
    }
    PLL_CS = 1; /* 12 MHz * 133 / 6 / 2 */
    PLL_FBDIV = 133;
    CLEAR(PLL_PWR) = 1 << 0 | 1 << 5;
    while (!(PLL_CS & 1u << 31)) {
    }
    PLL_PRIM = 6 << 16 | 2 << 12;
    CLEAR(PLL_PWR) = 1 << 3;
    CLK_SYS_CTRL = 1;
    while (CLK_SYS_SELECTED != 1 << 1) {
    }
    CLK_PERI_CTRL = 1 << 11;
}

#define UART_HERTZ (EDGEPIPE_CLOCK_MHZ * 4000000u) /* it takes 16 clocks for a bit, and divides them by 64ths */
EDGEPIPE_REQUIRE_BAUD(UART_HERTZ, 64);

void edgepipe_board_init(void)
{
    const uint32_t first = IO_BANK | PADS_BANK | PLL_SYS;
    CLEAR(RESETS) = first;
    while ((RESETS_DONE & first) != first) {
    }
    use_pll();
    CLEAR(RESETS) = UART_0; /* its clock is there now */
    while (!(RESETS_DONE & UART_0)) {
    }
    GPIO_CTRL(0) = 2;
    GPIO_CTRL(1) = 2;
    const uint32_t divisor = EDGEPIPE_DIVISOR(UART_HERTZ);
    UART_IBRD = divisor >> 6;
    UART_FBRD = divisor & 63;
    UART_LCR_H = 0x70;
    UART_CR = 0x301;
}

int edgepipe_getchar(void)
{
    return UART_FR & RX_EMPTY ? -1 : (int)(UART_DR & 0xff);
}

void edgepipe_putchar(int byte)
{
    while (UART_FR & TX_FULL) {
    }
    UART_DR = (uint32_t)byte & 0xff;
}
