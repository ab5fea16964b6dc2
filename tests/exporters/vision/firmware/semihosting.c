/* Computes what comes by semihosting: windows.bin has images as their windows, one after the other; answers.bin gets the
 * output of each, then how often each layer ran and its cycles (the lower half first), and at last the peaks of stack and
 * arena and the stack's size. */
#include "board.h"
#include "edgepipe_model.h"
#include "profile.h"

enum { SYS_OPEN = 1, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT_EXTENDED = 0x20 };

static int32_t semihosting(int32_t operation, const void *arguments)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = arguments;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static _Noreturn void leave(int status)
{
    const uint32_t arguments[] = {0x20026, (uint32_t)status};
    for (;;)
        semihosting(SYS_EXIT_EXTENDED, arguments);
}

static int32_t transfer(int32_t operation, int32_t file, const void *bytes, uint32_t size)
{
    const uint32_t arguments[] = {(uint32_t)file, (uint32_t)bytes, size};
    return semihosting(operation, arguments);
}

void edgepipe_fault(void)
{
    leave(7);
}

static void write_findings(int32_t output)
{
    for (unsigned i = 0; i < EDGEPIPE_LAYERS; i++) {
        const uint64_t cycles = edgepipe_layer_cycles[i];
        const uint32_t facts[] = {edgepipe_layer_calls[i], (uint32_t)cycles, (uint32_t)(cycles >> 32)};
        if (transfer(SYS_WRITE, output, facts, sizeof facts) != 0)
            leave(5);
    }
    const uint32_t peaks[] = {edgepipe_stack_peak_bytes(), edgepipe_arena_peak_bytes(), edgepipe_stack_bytes()};
    if (transfer(SYS_WRITE, output, peaks, sizeof peaks) != 0)
        leave(6);
}

int main(void)
{
    const uint32_t to_read[] = {(uint32_t) "windows.bin", 1, 11}, to_write[] = {(uint32_t) "answers.bin", 5, 11};
    const int32_t input = semihosting(SYS_OPEN, to_read), output = semihosting(SYS_OPEN, to_write);
    edgepipe_paint_arena();
    for (;;) {
        edgepipe_init();
        for (unsigned tile = 0; tile < edgepipe_tiles(); tile++) {
            if (edgepipe_finish() != NULL)
                leave(2);
            if (transfer(SYS_READ, input, edgepipe_patch(), edgepipe_patch_bytes(tile)) != 0) {
                write_findings(output);
                leave(tile != 0);
            }
            if (edgepipe_push_patch(tile + 1) == 0 || edgepipe_push_patch(tile) != 0)
                leave(3);
        }
        if (transfer(SYS_WRITE, output, edgepipe_finish(), EDGEPIPE_OUTPUT_BYTES) != 0)
            leave(4);
    }
}
