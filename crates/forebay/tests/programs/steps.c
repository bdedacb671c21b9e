/* What the shell program of tests/tasks does, by a program that saves its state itself. Files in its directory
 * have it misbehave: see save() and leave(). */
#include <forebay_checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct model {
    long h, i, step, length;
    FILE *out;
};

static int there(const char *name)
{
    return access(name, F_OK) == 0;
}

static void wait_while(const char *name)
{
    while (there(name))
        usleep(10000);
}

static int save(void *arg, char *state, size_t size)
{
    struct model *model = arg;
    if (there("refuse")) {
        snprintf(state, size, "not now");
        return 1;
    }
    fflush(model->out);
    fflush(stdout);
    FILE *file = fopen("state.new", "w");
    if (!file)
        return 2;
    fprintf(file, "%ld %ld", model->h, model->i);
    if (there("saving"))
        wait_while("saving");
    if (there("die"))
        abort();
    fprintf(file, " %ld %ld\n", model->step, ftell(model->out));
    if (fclose(file) != 0 || rename("state.new", "state") != 0)
        return 3;
    if (!getcwd(state, size))
        return 4;
    snprintf(state + strlen(state), size - strlen(state), "/state");
    return 0;
}

static void leave(void)
{
    wait_while("ending");
    exit(FOREBAY_CHECKPOINT_EXIT);
}

/* A node that is started again may need a moment. */
static FILE *open_with_retries(const char *path, const char *mode)
{
    for (int tries = 0; tries < 6000; tries++) {
        FILE *file = fopen(path, mode);
        if (file)
            return file;
        usleep(10000);
    }
    perror(path);
    exit(1);
}

int main(int argc, char **argv)
{
    struct model model = { .h = 1 };
    char name[64];
    long steps = atol(argv[2]);
    if (argc < 3 || chdir(argv[1]) != 0)
        return 1;
    if (forebay_checkpoint_state()) {
        FILE *file = open_with_retries(forebay_checkpoint_state(), "r");
        if (fscanf(file, "%ld %ld %ld %ld", &model.h, &model.i, &model.step, &model.length) != 4)
            return 2;
        fclose(file);
    }
    snprintf(name, sizeof name, "begun.%d", forebay_checkpoint_restarts());
    FILE *begun = open_with_retries(name, "w");
    fprintf(begun, "%s", forebay_checkpoint_nodes() ? forebay_checkpoint_nodes() : "");
    fclose(begun);
    model.out = open_with_retries("out", "a");
    if (ftruncate(fileno(model.out), model.length) != 0 || fseek(model.out, 0, SEEK_END) != 0)
        return 3;
    if (forebay_checkpoint_register(0, save, &model) != 0) {
        fprintf(stderr, "not registered: %s\n", forebay_checkpoint_error());
        return 4;
    }
    /* A second one is refused, and does no harm. */
    if (forebay_checkpoint_register(0, save, &model) == 0)
        return 5;
    while (model.step < steps) {
        snprintf(name, sizeof name, "go.%ld", model.step);
        while (model.i == model.step * 1000 && !there(name)) {
            usleep(20000);
            if (forebay_checkpoint_poll())
                leave();
        }
        while (model.i < (model.step + 1) * 1000) {
            model.h = (model.h * 1103515245 + model.i) % 2147483648;
            model.i++;
            fprintf(model.out, "%ld %ld\n", model.i, model.h);
            if (model.i % 500 == 0)
                printf("at %ld %ld\n", model.i, model.h);
            if (model.i % 100 == 0) {
                usleep(1000);
                if (model.i < (model.step + 1) * 1000 && forebay_checkpoint_poll())
                    leave();
            }
        }
        model.step++;
        fflush(model.out);
        fflush(stdout);
        fprintf(stderr, "step %ld\n", model.step);
    }
    fclose(model.out);
    return 7;
}
