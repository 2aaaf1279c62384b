/* What the kernels of AdamW have in common. The plain path, methods/adamw.py, is the specification. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { NONE, SMOOTH, HARD };
enum { INFINITE = 0x7F800000 }; /* the bit pattern of inf: above it are those of NaN */
#define INLINE static inline __attribute__((always_inline))
#define LOG2_E 1.44269504088896341f

typedef struct {
    float sign, beta1, fresh1, beta2, fresh2, a, b, decay, lr; /* sign: -1 to maximize; fresh: 1 - beta */
} Adam;

/* Take a gradient into the moments. */
INLINE void advance(const Adam *adam, float gradient, float *m, float *v) {
    float g = adam->sign * gradient, d = g - *m;
    *m = adam->fresh1 < 0.5f ? *m + adam->fresh1 * d : g - adam->beta1 * d; /* torch's lerp */
    *v = adam->beta2 * *v + adam->fresh2 * g * g; /* in torch's order: g * g alone may overflow */
}

/* The bias-corrected direction u. */
INLINE float direction(const Adam *adam, float m, float v) { return m / (adam->a * sqrtf(v) + adam->b); }

INLINE int32_t magnitude(float x) {
    union { float f; int32_t i; } bits = {.f = x};
    return bits.i & INT32_MAX;
}

/* 2^(-size rate) for 0 <= size rate < 124.1, to 2 ulp: 2^n 2^f with a whole n and |f| <= 1/2. Adding 1.5 * 2^23 rounds to
   a whole number, which then stands in the lowest bits; the polynomial is the minimax one of degree 5. */
INLINE float exp2_minus(float size, float rate) {
    const float round = 12582912.0f;
    float shifted = round - size * rate;
    float f = (round - shifted) - size * rate; /* with n negative */
    union { float f; uint32_t i; } n = {.f = shifted}, y; /* unsigned: they may wrap where the caller takes 0 instead */
    y.f = 1.327463309e-3f;
    y.f = y.f * f + 9.671961889e-3f;
    y.f = y.f * f + 5.550678447e-2f;
    y.f = y.f * f + 2.402223498e-1f;
    y.f = y.f * f + 6.931470633e-1f;
    y.f = y.f * f + 1.0f;
    y.i += n.i << 23;
    return y.f;
}
