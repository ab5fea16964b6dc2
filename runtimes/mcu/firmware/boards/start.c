/* From reset to main on any Cortex-M: vectors, memory, the clock, the stack's paint. The stack lies below all data, so
 * that it faults where it would otherwise overwrite them. */
#include <string.h>

#include "board.h"

enum { PAINT = 0x5a5a5a5a };

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SYST_CSR REGISTER(0xe000e010)
#define SYST_RVR REGISTER(0xe000e014)
#define SYST_CVR REGISTER(0xe000e018)
#define NVIC_ENABLE(word) REGISTER(0xe000e100 + 4 * (word))
#define NVIC_DISABLE(word) REGISTER(0xe000e180 + 4 * (word))
#define NVIC_FORGET(word) REGISTER(0xe000e280 + 4 * (word))
#define VTOR REGISTER(0xe000ed08)
#define CPACR REGISTER(0xe000ed88)
#define DEMCR REGISTER(0xe000edfc)
#define DWT_CTRL REGISTER(0xe0001000)

enum { SYSTICK_PERIOD = 1 << 24, TRACE_ENABLE = 1 << 24 };

extern uint32_t data_in_flash[], data_begin[], data_end[], bss_begin[], bss_end[], stack_bottom[], stack_top[];

int main(void);
_Noreturn void reset(void);

static volatile uint32_t turns; /* of SysTick */

static void count_turns(void)
{
    turns++;
}

/* Weak: a debugger, or a test, may want to know. */
__attribute__((weak)) void edgepipe_fault(void)
{
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    [0] = stack_top,
    [1] = (void *)reset,
    [2] = (void *)edgepipe_fault,
    [3] = (void *)edgepipe_fault,
    [4] = (void *)edgepipe_fault,
    [5] = (void *)edgepipe_fault,
    [6] = (void *)edgepipe_fault,
    [15] = (void *)count_turns,
};

static void paint_stack(void)
{
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    for (volatile uint32_t *word = stack_bottom; word < here; word++)
        *word = PAINT;
}

_Noreturn void reset(void)
{
    paint_stack();
    memcpy(data_begin, data_in_flash, (size_t)((char *)data_end - (char *)data_begin));
    memset(bss_begin, 0, (size_t)((char *)bss_end - (char *)bss_begin));
    VTOR = (uint32_t)vectors;
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    CPACR |= 0xf << 20; /* the FPU, which MVE shares */
    __asm__ volatile("dsb\n isb");
#endif
    edgepipe_board_init();
    SYST_RVR = SYSTICK_PERIOD - 1;
    SYST_CVR = 0;
    SYST_CSR = 7; /* the processor's clock, an interrupt at zero, on */
    main();
    for (;;) {
    }
}

/* By SysTick, which every core has and QEMU emulates: the processor's clock, with an interrupt where its 24 bits wrap. */
uint64_t edgepipe_cycles(void)
{
    uint32_t before, cycles;
    do {
        before = turns;
        cycles = SYSTICK_PERIOD - 1 - SYST_CVR;
    } while (before != turns);
    return (uint64_t)before * SYSTICK_PERIOD + cycles;
}

/* Weak: boards whose serial port interrupts have their own. */
__attribute__((weak)) void edgepipe_wait(void)
{
}

/* Masked interrupts wake the processor, too. One that has come already keeps it awake. */
void edgepipe_sleep(unsigned interrupt)
{
    const unsigned word = interrupt / 32;
    const uint32_t bit = 1u << interrupt % 32;
    __asm__ volatile("cpsid i");
    NVIC_ENABLE(word) = bit;
    __asm__ volatile("dsb\n wfi");
    NVIC_DISABLE(word) = bit;
    NVIC_FORGET(word) = bit;
    __asm__ volatile("cpsie i");
}

/* Every core has a unit for watchpoints and traces, and QEMU emulates none; programs on ARMv6-M cannot see it. */
bool edgepipe_is_emulated(void)
{
#if __ARM_ARCH >= 7
    DEMCR |= TRACE_ENABLE;
    return DWT_CTRL == 0;
#else
    return false;
#endif
}

size_t edgepipe_stack_bytes(void)
{
    return (size_t)((char *)stack_top - (char *)stack_bottom);
}

size_t edgepipe_stack_peak_bytes(void)
{
    const uint32_t *word = stack_bottom;
    while (word < stack_top && *word == PAINT)
        word++;
    return (size_t)((const char *)stack_top - (const char *)word);
}
