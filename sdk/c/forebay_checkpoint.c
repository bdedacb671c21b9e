#define _GNU_SOURCE
#include "forebay_checkpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The longest line. */
enum { LINE = 8192, STATE = 4096 };

static volatile sig_atomic_t wanted;

/* The process that has registered, for a child has what its parent had. */
static pid_t owner;
static int connection = -1;
static forebay_checkpoint_save save_state;
static void *save_argument;
static char why[256] = "";

/* What has come and was not looked at. */
static char buffer[LINE];
static size_t filled;

static void on_signal(int number)
{
    (void)number;
    wanted = 1;
}

static int fail(int code, const char *text)
{
    snprintf(why, sizeof why, "%.255s", text);
    errno = code;
    return -1;
}

static int is_registered(void)
{
    return connection >= 0 && owner == getpid();
}

static int send_line(const char *line)
{
    size_t length = strlen(line), sent = 0;
    while (sent < length) {
        ssize_t some = send(connection, line + sent, length - sent, MSG_NOSIGNAL);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return -1;
        sent += (size_t)some;
    }
    return 0;
}

/* The next line: 1, or 0 if there is none and `wait` is not set, or -1 at the end. */
static int next_line(char *line, int wait)
{
    for (;;) {
        char *end = memchr(buffer, '\n', filled);
        if (end) {
            size_t length = (size_t)(end - buffer);
            memcpy(line, buffer, length);
            line[length] = 0;
            filled -= length + 1;
            memmove(buffer, end + 1, filled);
            return 1;
        }
        if (filled == sizeof buffer)
            return -1;
        ssize_t some = recv(connection, buffer + filled, sizeof buffer - filled, wait ? 0 : MSG_DONTWAIT);
        if (some < 0 && errno == EINTR)
            continue;
        if (some < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (some <= 0)
            return -1;
        filled += (size_t)some;
    }
}

static int dial(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path)
        return fail(ENAMETOOLONG, "the path of the socket is too long");
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return fail(code, strerror(code));
    }
    return fd;
}

int forebay_checkpoint_register(int number, forebay_checkpoint_save save, void *arg)
{
    const char *path = getenv("FOREBAY_CHECKPOINT");
    char line[LINE];
    if (!path || !*path)
        return fail(ENOTSUP, "not started by `forebay run --migratable` or `--cooperative`");
    if (is_registered())
        return fail(EALREADY, "this process is registered already");
    if (number == 0)
        number = SIGUSR1;
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, NULL) != 0)
        return fail(errno, "this signal can't be used");
    int fd = dial(path);
    if (fd < 0)
        return -1;
    connection = fd;
    owner = getpid();
    filled = 0;
    wanted = 0;
    save_state = save;
    save_argument = arg;
    snprintf(line, sizeof line, "register 1 %d\n", number);
    if (send_line(line) != 0 || next_line(line, 1) != 1 || strcmp(line, "ok") != 0) {
        forebay_checkpoint_unregister();
        return fail(EPERM, strncmp(line, "no ", 3) == 0 ? line + 3 : "nobody answers");
    }
    return 0;
}

void forebay_checkpoint_unregister(void)
{
    if (is_registered())
        close(connection);
    connection = -1;
    wanted = 0;
}

int forebay_checkpoint_wanted(void)
{
    return wanted && is_registered();
}

/* Which request there is, that was not given up meanwhile: its number, or 0; -1 at the end. */
static long request(void)
{
    char line[LINE];
    long asked = 0, number;
    int found;
    while ((found = next_line(line, 0)) == 1) {
        if (sscanf(line, "save %ld", &number) == 1)
            asked = number;
        else if (sscanf(line, "stay %ld", &number) == 1 && number == asked)
            asked = 0;
    }
    return found < 0 ? -1 : asked;
}

/* Saves the state and says so. 0, or -1 at the end. */
static int answer(long asked)
{
    char state[STATE] = "", line[LINE];
    int refused = save_state(save_argument, state, sizeof state);
    state[sizeof state - 1] = 0;
    state[strcspn(state, "\n")] = 0;
    if (refused && !*state)
        snprintf(state, sizeof state, "code %d", refused);
    snprintf(line, sizeof line, "%s %ld %s\n", refused ? "refused" : "saved", asked, state);
    return send_line(line);
}

int forebay_checkpoint_poll(void)
{
    if (!forebay_checkpoint_wanted())
        return 0;
    for (;;) {
        char line[LINE];
        long asked, number;
        wanted = 0;
        asked = request();
        if (asked == 0)
            return 0;
        if (asked < 0 || answer(asked) != 0)
            break;
        while (next_line(line, 1) == 1) {
            if (sscanf(line, "end %ld", &number) == 1 && number == asked)
                return 1;
            if (sscanf(line, "stay %ld", &number) == 1 && number == asked)
                return 0;
        }
        break;
    }
    /* Whoever had the task is gone, and so is the task soon. */
    forebay_checkpoint_unregister();
    return 0;
}

int forebay_checkpoint_restarts(void)
{
    const char *count = getenv("FOREBAY_RESTARTS");
    return count ? atoi(count) : 0;
}

static const char *said(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

const char *forebay_checkpoint_state(void)
{
    return said("FOREBAY_STATE");
}

const char *forebay_checkpoint_nodes(void)
{
    return said("FOREBAY_NODES");
}

const char *forebay_checkpoint_error(void)
{
    return why;
}
