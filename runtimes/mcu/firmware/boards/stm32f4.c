/* STM32F405: 168 MHz from the internal oscillator, USART1 on PA9 (out) and PA10 (in). QEMU's netduinoplus2 has neither
 * oscillators nor pins, and runs at that speed: nothing here waits for them for ever. */
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define RCC_CR REGISTER(0x40023800)
#define RCC_PLLCFGR REGISTER(0x40023804)
#define RCC_CFGR REGISTER(0x40023808)
#define RCC_AHB1ENR REGISTER(0x40023830)
#define RCC_APB2ENR REGISTER(0x40023844)
#define FLASH_ACR REGISTER(0x40023c00)
#define GPIOA_MODER REGISTER(0x40020000)
#define GPIOA_AFRH REGISTER(0x40020024)
#define USART1_SR REGISTER(0x40011000)
#define USART1_DR REGISTER(0x40011004)
#define USART1_BRR REGISTER(0x40011008)
#define USART1_CR1 REGISTER(0x4001100c)

enum { PATIENCE = 100000, PLL_ON = 1 << 24, PLL_READY = 1 << 25, RX_FULL = 1 << 5, TX_EMPTY = 1 << 7 };
enum { USART1_INTERRUPT = 37 };

static void use_pll(void)
{
    RCC_PLLCFGR = 8 | 168 << 6 | 7 << 24; /* 16 MHz / 8 * 168 / 2 */
    RCC_CR |= PLL_ON;
    FLASH_ACR = 5 | 7 << 8; /* wait states; prefetch and caches */
    RCC_CFGR = 5 << 10 | 4 << 13; /* APB1 at a quarter, APB2 at half of it */
    for (int patience = PATIENCE; patience > 0 && !(RCC_CR & PLL_READY); patience--) {
    }
    RCC_CFGR |= 2;
}

#define USART1_HERTZ (EDGEPIPE_CLOCK_MHZ / 2 * 1000000u)
EDGEPIPE_REQUIRE_BAUD(USART1_HERTZ, 16);

void edgepipe_board_init(void)
{
    use_pll();
    RCC_AHB1ENR |= 1 << 0;
    RCC_APB2ENR |= 1 << 4;
    GPIOA_AFRH = (GPIOA_AFRH & ~0xff0u) | 7 << 4 | 7 << 8;
    GPIOA_MODER = (GPIOA_MODER & ~(0xfu << 18)) | 0xau << 18;
    USART1_BRR = EDGEPIPE_DIVISOR(USART1_HERTZ);
    USART1_CR1 = 1 << 13 | 1 << 5 | 1 << 3 | 1 << 2; /* on, interrupt for each byte, out, in */
}

void edgepipe_wait(void)
{
    edgepipe_sleep(USART1_INTERRUPT);
}

int edgepipe_getchar(void)
{
    return USART1_SR & RX_FULL ? (int)(USART1_DR & 0xff) : -1;
}

void edgepipe_putchar(int byte)
{
    while (!(USART1_SR & TX_EMPTY)) {
    }
    USART1_DR = (uint32_t)byte & 0xff;
}
