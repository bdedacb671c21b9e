/* How a program saves its state itself, so that `forebay migrate` can have it go on at another node.
 *
 * The program must have been started by `forebay run --migratable` or `--cooperative`. It registers one of
 * its processes, calls forebay_checkpoint_poll() wherever its state is whole, and ends when that says so:
 * it is then started anew, with the same command, at the other node.
 *
 *     static int save(void *arg, char *state, size_t size)
 *     {
 *         snprintf(state, size, "%s", "/data/run/state");
 *         return write_all("/data/run/state", arg);        // 0: it is saved
 *     }
 *
 *     if (forebay_checkpoint_state())
 *         read_all(forebay_checkpoint_state(), &model);
 *     forebay_checkpoint_register(0, save, &model);
 *     while (step(&model))
 *         if (forebay_checkpoint_poll())
 *             return FOREBAY_CHECKPOINT_EXIT;
 *
 * Compile: cc program.c $(pkg-config --cflags --libs forebay-checkpoint), or with forebay_checkpoint.c beside
 * the program. The protocol is in docs/guide/jobs.md. */
#ifndef FOREBAY_CHECKPOINT_H
#define FOREBAY_CHECKPOINT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a program ends with that has saved its state: whoever started it ends with it, too. */
#define FOREBAY_CHECKPOINT_EXIT 85

/* Saves the state: returns 0 if that was done, else the program goes on where it is. Into `state`, of `size`
 * bytes, it writes where the state is, or why it was not saved: one line. A path is synced, with all that is
 * below it; so are files that are open. */
typedef int (*forebay_checkpoint_save)(void *arg, char *state, size_t size);

/* Registers this process, which is told by `signal` (0: SIGUSR1) to save its state. Returns 0, or -1 with
 * errno: ENOTSUP if it was not started so that it can be migrated, EPERM if it is refused
 * (forebay_checkpoint_error() says why). A program can well go on without. */
int forebay_checkpoint_register(int signal, forebay_checkpoint_save save, void *arg);

/* To be called where the state is whole, as often as one likes: it costs a look at a flag. If the state is
 * wanted, it is saved here. Returns 1 if the program is to end now, else 0. */
int forebay_checkpoint_poll(void);

/* Whether the state is wanted, for programs whose processes have to agree before they save it. */
int forebay_checkpoint_wanted(void);

/* This process is told no more. */
void forebay_checkpoint_unregister(void);

/* How often the program was started from a state that it had saved. */
int forebay_checkpoint_restarts(void);

/* What was said of the state that it is to begin from; NULL if it begins at the beginning. */
const char *forebay_checkpoint_state(void);

/* The machines that it is to use, separated by commas, its own first; NULL if nobody says. */
const char *forebay_checkpoint_nodes(void);

/* Why the last call failed. */
const char *forebay_checkpoint_error(void);

#ifdef __cplusplus
}
#endif

#endif
