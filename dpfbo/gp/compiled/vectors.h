/* Vectors of 64 bytes: products, exponentials, and cosines and sines of many angles at once. The compiler splits the
   vectors if registers are shorter. Angles are in half turns, t = angle / pi: reducing them to |t| <= 1/2 is exact. */

#ifndef DPFBO_VECTORS_H
#define DPFBO_VECTORS_H

#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

enum { DOUBLES = 8, FLOATS = 16 };

typedef double Doubles __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));
typedef long long Integers __attribute__((vector_size(64)));

static const double PI = 3.14159265358979323846;
static const double ROUND = 6755399441055744.0; /* 1.5 2^52: adding and subtracting it rounds to an integer */

/* Taylor coefficients of cos(pi f) and sin(pi f) / f in powers of f^2; the next term is below 2e-17 for |f| <= 1/2. */
#define N_TERMS 11
static const double COS_TERMS[N_TERMS] = {
    1.0, -4.9348022005446793, 4.0587121264167682, -1.3352627688545895, 0.23533063035889320, -0.025806891390014060,
    0.0019295743094039230, -0.00010463810492484571, 4.3030695870329470e-6, -1.3878952462213772e-7,
    3.6047307974625009e-9,
};
static const double SIN_TERMS[N_TERMS] = {
    3.1415926535897932, -5.1677127800499700, 2.5501640398773454, -0.59926452932079208, 0.082145886611128229,
    -0.0073704309457143508, 0.00046630280576761256, -2.1915353447830216e-5, 7.9520540014755128e-7,
    -2.2948428997269873e-8, 5.3926646626081285e-10,
};
enum { N_FLOAT_TERMS = 7 }; /* enough for 24 bits */

INLINE void cos_and_sin(Doubles t, Doubles *cosine, Doubles *sine)
{
    Doubles turns = (t + ROUND) - ROUND, f = t - turns, z = f * f, half = 0.5 * turns;
    Doubles odd = half - ((half + ROUND) - ROUND), sign = 1.0 - 8.0 * odd * odd; /* odd: 0 or +-1/2 */
    Doubles c = COS_TERMS[N_TERMS - 1] - 0.0 * z, s = SIN_TERMS[N_TERMS - 1] - 0.0 * z;
    for (int n = N_TERMS - 2; n >= 0; n--) {
        c = c * z + COS_TERMS[n];
        s = s * z + SIN_TERMS[n];
    }
    *cosine = sign * c;
    *sine = sign * f * s;
}

/* Cosines and sines of FLOATS angles in single precision; angles are reduced in double precision. */
INLINE void cos_and_sin_floats(const double *restrict t, float *restrict cosine, float *restrict sine)
{
    for (int l = 0; l < FLOATS; l++) {
        double turns = (t[l] + ROUND) - ROUND, half = 0.5 * turns;
        double odd = half - ((half + ROUND) - ROUND);
        float f = (float)(t[l] - turns), z = f * f, sign = (float)(1.0 - 8.0 * odd * odd);
        float c = (float)COS_TERMS[N_FLOAT_TERMS - 1], s = (float)SIN_TERMS[N_FLOAT_TERMS - 1];
        for (int n = N_FLOAT_TERMS - 2; n >= 0; n--) {
            c = c * z + (float)COS_TERMS[n];
            s = s * z + (float)SIN_TERMS[n];
        }
        cosine[l] = sign * c;
        sine[l] = sign * f * s;
    }
}

/* exp(x) for x <= 0, within 2 ulp; 0 for x < -700. */
INLINE Doubles exponential(Doubles x)
{
    Integers counts = x >= -700.0;
    x = (Doubles)((Integers)x & counts);
    Doubles n = (x * 1.4426950408889634 + ROUND) - ROUND;
    Doubles r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10; /* log 2 in two parts */
    Doubles total = 1.0 / 6227020800.0 - 0.0 * r;
    static const double TERMS[] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                                   1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,     1.0 / 6.0,
                                   0.5,               1.0,              1.0};
    for (int k = 0; k < 13; k++)
        total = total * r + TERMS[k];
    Integers exponent = __builtin_convertvector(n, Integers) + 1023;
    return (Doubles)((Integers)(total * (Doubles)(exponent << 52)) & counts);
}

/* out_ij = sum_k left_ki right_kj for `height` rows i and `vectors` vectors of columns j. */
INLINE void tile(const int height, const int vectors, long K, const float *left, long rows, const float *right,
                 long width, float *out)
{
    Floats total[8][2];
    for (int i = 0; i < height; i++)
        for (int v = 0; v < vectors; v++)
            total[i][v] = (Floats){0};
    for (long k = 0; k < K; k++, left += rows, right += width)
        for (int v = 0; v < vectors; v++) {
            Floats column = *(const Floats *)(right + v * FLOATS);
            for (int i = 0; i < height; i++)
                total[i][v] += left[i] * column;
        }
    for (int i = 0; i < height; i++)
        for (int v = 0; v < vectors; v++)
            *(Floats *)(out + i * width + v * FLOATS) = total[i][v];
}

INLINE double sum(Doubles v)
{
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

INLINE long up_to(long n, long multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* The arrays of one call, each aligned to 64 bytes; `release` frees them all. */
typedef struct {
    void *arrays[24];
    int count, failed;
} Memory;

INLINE void *array(Memory *memory, long n, size_t size)
{
    void *begin = aligned_alloc(64, ((size_t)n * size + 64) / 64 * 64); /* never 0 bytes */
    memory->failed |= begin == NULL;
    return memory->arrays[memory->count++] = begin;
}

INLINE double *doubles(Memory *memory, long n)
{
    return array(memory, n, sizeof(double));
}

INLINE float *floats(Memory *memory, long n)
{
    return array(memory, n, sizeof(float));
}

/* Frees all arrays; returns 1, the code with which functions of the library report too little memory. */
INLINE int release(Memory *memory)
{
    for (int i = 0; i < memory->count; i++)
        free(memory->arrays[i]);
    return 1;
}

#endif
