/* Calls kernels for another process, which may be for another processor (other_processor.py).
 *
 * All numbers are 64-bit integers in the byte order of both. A call: the kernel's number; the number
 * of arguments, of regions and of pointers; each region's size and bytes; each pointer (the region
 * it is in, or -1 for an argument; where in it, or which argument; the region it points to); the
 * arguments. The answer: the result, then the bytes of each region.
 *
 * A region ends right before a page that nobody may touch, so a kernel that leaves it dies.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 65536, MOST = 4096 };

extern int64_t copy_headers(int64_t, int64_t, int64_t, int64_t, void *, void *);
extern int64_t decode_avro(void *);
extern int64_t decode_json(void *);
extern int64_t decode_messages(void *);
extern int64_t decode_variant(void *);
extern int64_t find_marks(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
extern int64_t index_(int64_t, int64_t, int64_t, int64_t, void *) __asm__("index");
extern int64_t measure_headers(int64_t, int64_t, int64_t, void *);
extern int64_t scan(void *);

static void get(void *to, size_t size) {
    for (char *at = to; size;) {
        ssize_t got = read(0, at, size);
        if (got <= 0) _exit(got < 0);
        at += got, size -= got;
    }
}

static void put(const void *from, size_t size) {
    for (const char *at = from; size;) {
        ssize_t sent = write(1, at, size);
        if (sent <= 0) _exit(1);
        at += sent, size -= sent;
    }
}

static int64_t number(void) {
    int64_t value;
    get(&value, sizeof value);
    return value;
}

static char *room(size_t size, char **map, size_t *whole) {
    size_t used = (size + PAGE - 1) / PAGE * PAGE;
    *whole = used + PAGE;
    *map = mmap(0, *whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*map == MAP_FAILED || mprotect(*map + used, PAGE, PROT_NONE)) _exit(2);
    return *map + used - size;
}

static int64_t called(int64_t kernel, int64_t *a) {
    switch (kernel) {
    case 0: return copy_headers(a[0], a[1], a[2], a[3], (void *)a[4], (void *)a[5]);
    case 1: return decode_avro((void *)a[0]);
    case 2: return decode_json((void *)a[0]);
    case 3: return decode_messages((void *)a[0]);
    case 4: return decode_variant((void *)a[0]);
    case 5: return find_marks(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 6: return index_(a[0], a[1], a[2], a[3], (void *)a[4]);
    case 7: return measure_headers(a[0], a[1], a[2], (void *)a[3]);
    case 8: return scan((void *)a[0]);
    default: _exit(3);
    }
}

int main(void) {
    for (;;) {
        int64_t kernel = number(), arguments = number(), regions = number(), pointers = number();
        static char *at[MOST], *map[MOST];
        static size_t size[MOST], whole[MOST];
        static int64_t where[MOST][3];
        int64_t values[8];
        if (arguments > 8 || regions > MOST || pointers > MOST) _exit(4);
        for (int64_t each = 0; each < regions; each++) {
            size[each] = number();
            at[each] = room(size[each], &map[each], &whole[each]);
            get(at[each], size[each]);
        }
        for (int64_t each = 0; each < pointers; each++) get(where[each], sizeof where[each]);
        get(values, 8 * arguments);
        for (int64_t each = 0; each < pointers; each++) {
            int64_t address = (int64_t)at[where[each][2]];
            if (where[each][0] < 0) values[where[each][1]] = address;
            else memcpy(at[where[each][0]] + where[each][1], &address, 8);
        }
        int64_t result = called(kernel, values);
        put(&result, sizeof result);
        for (int64_t each = 0; each < regions; each++) {
            put(at[each], size[each]);
            munmap(map[each], whole[each]);
        }
    }
}
