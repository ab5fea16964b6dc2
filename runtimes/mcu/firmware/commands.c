#include "commands.h"

#include <stdbool.h>
#include <string.h>

#include "board.h"
#include "edgepipe_model.h"
#include "patches.h"
#include "text.h"

#ifndef EDGEPIPE_PIXEL_OFFSET
#define EDGEPIPE_PIXEL_OFFSET (EDGEPIPE_INPUT_UNSIGNED ? 0 : 128)
#endif

#ifndef EDGEPIPE_MODEL_NAME
#define EDGEPIPE_MODEL_NAME EDGEPIPE_MODEL_HASH
#endif

#if EDGEPIPE_KEEP_IMAGE
static int8_t kept_image[EDGEPIPE_INPUT_BYTES];
#define IMAGE_IS_KEPT true
#define IMAGE kept_image
#else
#define IMAGE_IS_KEPT false
#define IMAGE edgepipe_patch()
#endif

static bool is_loading, is_loaded;
static size_t loaded;         /* bytes */
static const int8_t *output; /* of the last inference, NULL if there is none */

void ep_drop_image(void)
{
    is_loading = is_loaded = false;
    output = NULL;
}

static void print_timestamp(void)
{
    ep_print("m-lap-us-");
    ep_print_unsigned(edgepipe_cycles() / EDGEPIPE_CLOCK_MHZ);
    ep_print("\r\n");
}

static void print_count(const char *before, size_t number, const char *after)
{
    ep_print(before);
    ep_print_unsigned(number);
    ep_print(after);
}

static void help(void)
{
    ep_print("edgepipe\r\n\r\n"
             "help         : Print this information\r\n"
             "name         : Print the name of the device\r\n"
             "profile      : Print the profile and the model\r\n"
             "timestamp    : Print the microseconds since the start\r\n"
             "db load N    : Expect an image of N bytes\r\n"
             "db HH[HH]*   : Bytes of the image, hexadecimal\r\n"
             "db print     : Print the image\r\n"
             "infer N [W]  : Run N inferences after W to warm up (N is 1, W is 10 if left out)\r\n"
             "results      : Print the scores of the last inference\r\n");
}

static void print_results(void)
{
    if (output == NULL) {
        ep_print("e-[No inference has been run: load an image, then infer]\r\n");
        return;
    }
    ep_print("m-results-[");
    for (size_t i = 0; i < EDGEPIPE_OUTPUT_BYTES; i++) {
        const int32_t code = EDGEPIPE_OUTPUT_UNSIGNED ? (uint8_t)output[i] : output[i];
        const float thousandths = (float)(code - EDGEPIPE_OUTPUT_ZERO_POINT) * (float)EDGEPIPE_OUTPUT_SCALE * 1000.0f;
        if (i > 0)
            edgepipe_putchar(',');
        ep_print_thousandths((int32_t)(thousandths + (thousandths < 0 ? -0.5f : 0.5f)));
    }
    ep_print("]\r\n");
}

static bool takes_whole_image(void)
{
    return edgepipe_tiles() == 1 && edgepipe_patch_bytes(0) == EDGEPIPE_INPUT_BYTES;
}

static void load(const char *size)
{
    ep_drop_image();
    if (size == NULL)
        ep_print("e-[Command 'db load' requires the # of bytes]\r\n");
    else if (!takes_whole_image())
        ep_print("e-[The model runs patch by patch: send frames, as edgepipe run does]\r\n");
    else if (ep_read_number(size) != EDGEPIPE_INPUT_BYTES)
        print_count("e-[The model takes ", EDGEPIPE_INPUT_BYTES, " bytes]\r\n");
    else {
        ep_drop_inference();
        edgepipe_init();
        is_loading = true;
        loaded = 0;
        print_count("m-[Expecting ", EDGEPIPE_INPUT_BYTES, " bytes]\r\n");
    }
}

/* A piece that is not sound is refused as a whole, so that the runner can send it again. */
static void take_bytes(const char *digits)
{
    if (!is_loading) {
        ep_print("e-[No bytes are expected: db load N first]\r\n");
        return;
    }
    const size_t length = strlen(digits);
    if (length % 2 != 0) {
        ep_print("e-[Insufficent number of hex digits]\r\n");
        return;
    }
    for (size_t i = 0; i < length; i += 2)
        if (ep_read_hex(digits + i) < 0) {
            const char found[] = {digits[i], digits[i + 1], '\0'};
            ep_print("e-[Invalid hex digit '");
            ep_print(found);
            ep_print("']\r\n");
            return;
        }
    int8_t *const image = IMAGE;
    for (size_t i = 0; i < length && loaded < EDGEPIPE_INPUT_BYTES; i += 2, loaded++)
        image[loaded] = (int8_t)(ep_read_hex(digits + i) - EDGEPIPE_PIXEL_OFFSET);
    if (loaded == EDGEPIPE_INPUT_BYTES) {
        is_loading = false;
        is_loaded = true;
        ep_print("m-load-done\r\n");
    }
}

static void print_image(void)
{
    if (!is_loading && !is_loaded) {
        ep_print("e-[There is no image: db load N first]\r\n");
        return;
    }
    const int8_t *const image = IMAGE;
    for (size_t i = 0; i < loaded; i++) {
        ep_print(i % 8 == 0 ? "m-buffer-" : "-");
        ep_print_hex((uint8_t)(image[i] + EDGEPIPE_PIXEL_OFFSET));
        if (i % 8 == 7 || i + 1 == loaded)
            ep_print("\r\n");
    }
}

static void buffer_command(char *arguments)
{
    const char *const word = ep_next_word(&arguments);
    if (word == NULL)
        ep_print("e-[Command 'db' requires a subcommand]\r\n");
    else if (strcmp(word, "load") == 0)
        load(ep_next_word(&arguments));
    else if (strcmp(word, "print") == 0)
        print_image();
    else
        take_bytes(word);
}

static void run_once(void)
{
    if (IMAGE_IS_KEPT) {
        edgepipe_init();
        memcpy(edgepipe_patch(), IMAGE, EDGEPIPE_INPUT_BYTES);
    }
    output = edgepipe_push_patch(0) == 0 ? edgepipe_finish() : NULL;
    is_loaded = IMAGE_IS_KEPT;
}

static void infer(char *arguments)
{
    const char *const repeats = ep_next_word(&arguments), *const warm_ups = ep_next_word(&arguments);
    const int32_t inferences = repeats == NULL ? 1 : ep_read_number(repeats);
    const int32_t warm_up = warm_ups != NULL ? ep_read_number(warm_ups) : IMAGE_IS_KEPT ? 10 : 0;
    if (inferences <= 0) {
        ep_print("e-[Inference iterations must be >0]\r\n");
        return;
    }
    if (warm_up < 0) {
        ep_print("e-[Inference warmup must be >=0]\r\n");
        return;
    }
    if (!is_loaded) {
        ep_print("e-[There is no image: db load N and its bytes first]\r\n");
        return;
    }
    if (!IMAGE_IS_KEPT && inferences + warm_up > 1) {
        print_count("e-[The image is gone after one inference, there is no SRAM to keep its ", EDGEPIPE_INPUT_BYTES,
                    " bytes: infer 1 0]\r\n");
        return;
    }
    ep_drop_inference();
    print_count("m-warmup-start-", (size_t)warm_up, "\r\n");
    for (int32_t i = 0; i < warm_up; i++)
        run_once();
    ep_print("m-warmup-done\r\n");
    print_count("m-infer-start-", (size_t)inferences, "\r\n");
    print_timestamp();
    for (int32_t i = 0; i < inferences; i++)
        run_once();
    print_timestamp();
    ep_print("m-infer-done\r\n");
    print_results();
}

void ep_greet(void)
{
    ep_print("m-init-done\r\nm-ready\r\n");
}

void ep_answer_command(char *text)
{
    const char *const command = ep_next_word(&text);
    if (command == NULL)
        ep_print("e-[Unknown command: ]\r\n");
    else if (strcmp(command, "name") == 0)
        ep_print("m-name-dut-[edgepipe]\r\n");
    else if (strcmp(command, "profile") == 0)
        ep_print("m-profile-[ULPMark for tinyML Firmware V0.0.1]\r\nm-model-[" EDGEPIPE_MODEL_NAME "]\r\n");
    else if (strcmp(command, "timestamp") == 0)
        print_timestamp();
    else if (strcmp(command, "help") == 0)
        help();
    else if (strcmp(command, "db") == 0)
        buffer_command(text);
    else if (strcmp(command, "infer") == 0)
        infer(text);
    else if (strcmp(command, "results") == 0)
        print_results();
    else {
        ep_print("e-[Unknown command: ");
        ep_print(command);
        ep_print("]\r\n");
    }
    ep_print("m-ready\r\n");
}

void ep_answer_long_command(void)
{
    ep_print("e-[The command is too long]\r\nm-ready\r\n");
}
