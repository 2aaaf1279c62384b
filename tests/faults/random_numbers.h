/* Random numbers for the drivers that the sanitizers watch. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef MISSING
#define MISSING 0 /* entries that arrays lack of what the kernel is told */
#endif

static uint64_t state;

static uint32_t draw(uint32_t below) { /* Knuth's MMIX generator */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* Numbers of every kind: small and large ones, ties, zeros of both signs, subnormal ones, infinities, NaN. */
static float odd_number(void) {
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-42f, 3e38f, INFINITY, -INFINITY, NAN};
    if (draw(8) == 0) return odd[draw(draw(4) ? 5 : 9)];
    return ((float)draw(2000001) - 1e6f) * (draw(3) ? 1e-6f : 1e3f);
}

static float *numbers(int64_t n, int nonnegative) {
    int64_t size = n > 9 ? n - MISSING : n;
    float *x = malloc((size_t)size * sizeof *x);
    for (int64_t i = 0; i < size; i++) {
        x[i] = odd_number();
        if (nonnegative) x[i] = fabsf(x[i]);
    }
    return x;
}
