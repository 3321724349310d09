/* A stand-in for a model server, fast enough that a gateway before it is what gets measured.
 *
 *     upstream PORT
 *
 * One thread, epoll, the loopback only, HTTP/1.1 with keep-alive. It answers like an OpenAI-compatible server:
 *
 *     POST, streaming   a role event, content events, a finish event, usage (asked for or not, so that no gateway has to
 *                       count for itself), [DONE]; each an HTTP chunk of its own.
 *                       Model `flood`: all in one write. `paced` and `slow`: one content event each 20 or 200 ms, whose
 *                       text is `@<CLOCK_MONOTONIC in ns>@ `, so that a reader on this machine can measure the way.
 *                       `max_tokens` says how many content events there are, 100 if it says nothing.
 *     POST, whole       one JSON answer
 *     GET               the list of models
 *
 * What it does not know is not checked: clients of this program are gateways under measurement. `upstream.py` does the
 * same where no compiler is at hand.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 4096, REQUEST = 64 * 1024, EVENTS = 256, DEFAULT_CHUNKS = 100, MOST_CHUNKS = 100000 };

static const char *const NAMES[] = {"flood", "paced", "slow"};
static const uint64_t PACES_NS[] = {0, 20000000, 200000000};
enum { KINDS = 3 };

struct client {
    unsigned life;        /* counts the connections that this descriptor was, so that a stale turn is noticed */
    int open, kind, wanted, left; /* content events asked for, and still to come */
    size_t have;          /* bytes in `request` */
    char *answer;         /* bytes [sent, ready) wait for the socket */
    size_t sent, ready, room;
    char request[REQUEST];
};

struct turn {
    uint64_t due_ns;
    int fd;
    unsigned life;
};

/* All streams of one kind have the same pace, so whoever is served next goes to the end: a ring, always in order. */
struct line {
    struct turn turns[CLIENTS * 2];
    size_t first, count;
};

static struct client *clients[CLIENTS];
static struct line lines[KINDS];
static int poller;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void put(struct client *client, const char *bytes, size_t length) {
    if (client->ready + length > client->room) {
        client->room = (client->ready + length) * 2;
        client->answer = realloc(client->answer, client->room);
        if (client->answer == NULL)
            abort();
    }
    memcpy(client->answer + client->ready, bytes, length);
    client->ready += length;
}

static void put_text(struct client *client, const char *text) { put(client, text, strlen(text)); }

static void put_chunk(struct client *client, const char *text) {
    char size[32];
    put(client, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", strlen(text)));
    put_text(client, text);
    put_text(client, "\r\n");
}

static void put_event(struct client *client, const char *delta, const char *finish) {
    char event[512];
    snprintf(event, sizeof event,
             "data: {\"id\":\"chatcmpl-upstream\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
             "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n",
             NAMES[client->kind], delta, finish);
    put_chunk(client, event);
}

static void put_content(struct client *client) {
    char delta[96] = "{\"content\":\" token\"}";
    if (PACES_NS[client->kind])
        snprintf(delta, sizeof delta, "{\"content\":\"@%llu@ \"}", (unsigned long long)now_ns());
    put_event(client, delta, "null");
    if (--client->left == 0) {
        put_event(client, "{}", "\"stop\"");
        char usage[320];
        snprintf(usage, sizeof usage,
                 "data: {\"id\":\"chatcmpl-upstream\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                 "\"model\":\"%s\",\"choices\":[],"
                 "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
                 NAMES[client->kind], client->wanted, client->wanted + 10);
        put_chunk(client, usage);
        put_chunk(client, "data: [DONE]\n\n");
        put_text(client, "0\r\n\r\n");
    }
}

static void put_json(struct client *client, const char *json) {
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
             strlen(json));
    put_text(client, head);
    put_text(client, json);
}

static void queue_turn(int fd, uint64_t due_ns) {
    struct line *line = &lines[clients[fd]->kind];
    size_t limit = sizeof line->turns / sizeof *line->turns;
    if (line->count == limit)
        abort(); /* turns of the dead go within one pace; more than this many hang-ups in one is no measurement */
    line->turns[(line->first + line->count++) % limit] = (struct turn){due_ns, fd, clients[fd]->life};
}

static void hang_up(int fd) {
    close(fd); /* epoll forgets it by itself */
    clients[fd]->open = 0;
    clients[fd]->life++;
}

static void watch(int fd, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(poller, operation, fd, &event) < 0)
        abort();
}

static void flush(int fd) {
    struct client *client = clients[fd];
    while (client->sent < client->ready) {
        ssize_t took = send(fd, client->answer + client->sent, client->ready - client->sent, MSG_NOSIGNAL);
        if (took < 0 && errno == EAGAIN) {
            watch(fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        if (took < 0) {
            hang_up(fd);
            return;
        }
        client->sent += (size_t)took;
    }
    client->sent = client->ready = 0;
}

/* The value after `"name":`, blanks skipped; NULL where the body has no such field. */
static const char *field(const char *body, const char *name) {
    const char *at = strstr(body, name);
    if (at == NULL)
        return NULL;
    at += strlen(name);
    while (*at == ':' || isspace((unsigned char)*at))
        at++;
    return at;
}

static void answer(int fd, const char *body, int is_post) {
    struct client *client = clients[fd];
    if (!is_post) {
        put_json(client, "{\"object\":\"list\",\"data\":["
                         "{\"id\":\"flood\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"bench\"},"
                         "{\"id\":\"paced\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"bench\"},"
                         "{\"id\":\"slow\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"bench\"}]}");
        return;
    }
    const char *model = field(body, "\"model\""), *stream = field(body, "\"stream\""),
               *most = field(body, "\"max_tokens\"");
    client->kind = 0;
    for (int kind = 1; kind < KINDS; kind++)
        if (model && *model == '"' && !strncmp(model + 1, NAMES[kind], strlen(NAMES[kind])))
            client->kind = kind;
    if (!stream || *stream != 't') {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"id\":\"chatcmpl-upstream\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"%s\","
                 "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello there!\"},"
                 "\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                 "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":12,\"total_tokens\":22}}",
                 NAMES[client->kind]);
        put_json(client, json);
        return;
    }
    int wanted = most ? atoi(most) : 0;
    client->left = client->wanted = wanted > 0 && wanted < MOST_CHUNKS ? wanted : DEFAULT_CHUNKS;
    put_text(client, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
                     "transfer-encoding: chunked\r\n\r\n");
    put_event(client, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
    if (PACES_NS[client->kind])
        queue_turn(fd, now_ns() + PACES_NS[client->kind]);
    else
        while (client->left)
            put_content(client);
}

/* Answer every complete request that has come; those behind an open stream wait for its end. */
static void serve(int fd) {
    struct client *client = clients[fd];
    while (client->open && !client->left) {
        client->request[client->have] = 0;
        char *end = strstr(client->request, "\r\n\r\n");
        if (end == NULL)
            return;
        end += 4;
        char after_head = *end;
        *end = 0;
        const char *length = strcasestr(client->request, "\r\ncontent-length:");
        int chunked = strcasestr(client->request, "\r\ntransfer-encoding:") != NULL;
        size_t head = (size_t)(end - client->request), body = length ? strtoul(length + 17, NULL, 10) : 0;
        *end = after_head;
        if (chunked) {
            char *last = strstr(end, "0\r\n\r\n");
            if (last == NULL)
                return;
            body = (size_t)(last + 5 - end);
        }
        if (client->have < head + body)
            return;
        char after_body = client->request[head + body];
        client->request[head + body] = 0;
        answer(fd, end, !strncmp(client->request, "POST", 4));
        client->request[head + body] = after_body;
        client->have -= head + body;
        memmove(client->request, client->request + head + body, client->have);
        flush(fd);
    }
}

static void receive(int fd) {
    struct client *client = clients[fd];
    size_t room = REQUEST - 1 - client->have;
    ssize_t got = room ? recv(fd, client->request + client->have, room, 0) : 0;
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        hang_up(fd);
        return;
    }
    client->have += (size_t)got;
    serve(fd);
}

static void welcome(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= CLIENTS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (clients[fd] == NULL && (clients[fd] = calloc(1, sizeof **clients)) == NULL)
            abort();
        struct client *client = clients[fd];
        client->open = 1;
        client->left = 0;
        client->have = client->sent = client->ready = 0;
        watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    }
}

/* Serve every turn that is due; milliseconds until the next one, -1 if nobody waits. */
static int take_turns(void) {
    int wait_ms = -1;
    for (int kind = 1; kind < KINDS; kind++) {
        struct line *line = &lines[kind];
        size_t limit = sizeof line->turns / sizeof *line->turns;
        while (line->count) {
            struct turn turn = line->turns[line->first];
            uint64_t now = now_ns();
            if (turn.due_ns > now) {
                int ms = (int)((turn.due_ns - now + 999999) / 1000000);
                wait_ms = wait_ms < 0 || ms < wait_ms ? ms : wait_ms;
                break;
            }
            line->first = (line->first + 1) % limit;
            line->count--;
            struct client *client = clients[turn.fd];
            if (!client->open || client->life != turn.life)
                continue;
            put_content(client);
            int more = client->left;
            flush(turn.fd);
            if (!client->open)
                continue;
            if (more)
                queue_turn(turn.fd, turn.due_ns + PACES_NS[kind]);
            else
                serve(turn.fd);
        }
    }
    return wait_ms;
}

int main(int count, char **words) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)(count > 1 ? atoi(words[1]) : 0));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 1024) < 0) {
        perror("upstream");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(EPOLL_CLOEXEC);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, take_turns());
        for (int n = 0; n < ready; n++) {
            int fd = events[n].data.fd;
            if (fd == listener) {
                welcome(listener);
                continue;
            }
            if (clients[fd]->open && events[n].events & EPOLLOUT) {
                watch(fd, EPOLL_CTL_MOD, EPOLLIN);
                flush(fd);
            }
            if (clients[fd]->open && events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(fd);
        }
    }
}
