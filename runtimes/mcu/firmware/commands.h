/* The command set of MLPerf Tiny (EEMBC's test harness, mlcommons/tiny), so that its runners can drive a board: text
 * that ends in %, answered by lines, the last of which is m-ready.
 *
 * The bytes of `db` are pixels as the runners send them; int8 models get them less EDGEPIPE_PIXEL_OFFSET. They go to
 * where the model reads its image, so a model that runs patch by patch takes frames only. An inference uses that place
 * for other things: with EDGEPIPE_KEEP_IMAGE=1 the image has a place of its own, which `infer N W` needs to repeat
 * itself; board.mk says so where the SRAM allows. */
#ifndef EDGEPIPE_COMMANDS_H
#define EDGEPIPE_COMMANDS_H

/* Say that the board has started. */
void ep_greet(void);

/* Obey a command and answer it; the text is taken apart. */
void ep_answer_command(char *text);

/* Answer what is too long to be a command. */
void ep_answer_long_command(void);

/* Drop the image: the arena is used for something else. */
void ep_drop_image(void);

#endif
