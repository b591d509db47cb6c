/* Values of a function at all pairs (left_i, right_j) of points, in single precision.

   An angle is a sum p + q of a part for each half of the axes, so that A and N of `ascent.h` are matrix products (see
   `FeatureFunction.on_product`). Rows and columns are the points of the two halves. Columns are sorted by the region of
   their half of the axes, and those of each region are padded to a multiple of FLOATS. */

#ifndef DPFBO_SCREENING_H
#define DPFBO_SCREENING_H

#include <float.h>

#include "ascent.h"

/* n points in some of the axes. */
typedef struct {
    long n, axes, first_axis;
    const double *points; /* n x axes */
    long *region;         /* n: the region, considering these axes only */
    long regions;
} Half;

typedef struct {
    Half rows, columns;
    long padded_rows, width; /* width: number of padded columns */
    long *place;             /* of each column: its index among the padded ones */
    long *first;             /* of each region of columns: its first place; then the end of the last one */
    double *row_points, *column_points; /* axes x padded points */
    float *p, *q, *left, *right;        /* 2 M x padded points: cosines and sines, and the factors of a product */
    float *scale, *values;              /* rows x width: 1 / sqrt(N), and the values */
} Product;

/* The index of the part that holds a coordinate, among k equal parts of [0, 1]. */
INLINE long part_of(double u, long k)
{
    long cell = 0;
    for (long j = 1; j < k; j++)
        cell += u >= (double)j / (double)k;
    return cell;
}

static void find_regions(Half *half, const long *parts)
{
    half->regions = 1;
    for (long d = 0; d < half->axes; d++)
        half->regions *= parts[half->first_axis + d];
    for (long i = 0; i < half->n; i++) {
        half->region[i] = 0;
        for (long d = 0; d < half->axes; d++) {
            long k = parts[half->first_axis + d];
            half->region[i] = half->region[i] * k + part_of(half->points[i * half->axes + d], k);
        }
    }
}

/* Sets the places of the columns, given their regions, and the width. */
static void place_columns(Product *product)
{
    const Half *columns = &product->columns;
    long place = 0;
    for (long c = 0; c < columns->regions; c++) {
        product->first[c] = place = up_to(place, FLOATS);
        for (long j = 0; j < columns->n; j++)
            if (columns->region[j] == c)
                product->place[j] = place++;
    }
    product->first[columns->regions] = product->width = up_to(place, FLOATS);
}

static void transpose(const Half *half, const long *place, long padded, double *points)
{
    for (long d = 0; d < half->axes; d++) {
        for (long i = 0; i < padded; i++)
            points[d * padded + i] = 0.0;
        for (long i = 0; i < half->n; i++)
            points[d * padded + (place == NULL ? i : place[i])] = half->points[i * half->axes + d];
    }
}

/* Cosines and sines of the angles of one half, 2 M x n; phases are 0 if `phase` is NULL. */
static void waves(const Map *map, long M, const double *phase, const Half *half, const double *points, long n,
                  float *out)
{
    for (long m = 0; m < M; m++)
        for (long i = 0; i < n; i += FLOATS) {
            double t[FLOATS] __attribute__((aligned(64)));
            for (int l = 0; l < FLOATS; l++)
                t[l] = phase == NULL ? 0.0 : phase[m];
            for (long d = 0; d < half->axes; d++) {
                double slope = map->slope[(half->first_axis + d) * map->M + m];
                for (int l = 0; l < FLOATS; l++)
                    t[l] += slope * points[d * n + i + l];
            }
            cos_and_sin_floats(t, out + 2 * m * n + i, out + (2 * m + 1) * n + i);
        }
}

/* out_ij = sum_k left_ki right_kj for all rows i and the columns j from `first` to below `end`. */
static void multiply(const Product *product, long M, const float *right, long first, long end, float *out)
{
    const long rows = product->padded_rows, width = product->width, n = product->rows.n;
    for (long j = first, wide; j < end; j += wide) {
        wide = end - j >= 2 * FLOATS ? 2 * FLOATS : FLOATS;
        for (long i = 0, high; i < n; i += high) {
            const float *left = product->left + i, *r = right + j;
            float *to = out + i * width + j;
            high = n - i >= 8 ? 8 : 1;
            if (high == 8 && wide == 2 * FLOATS)
                tile(8, 2, 2 * M, left, rows, r, width, to);
            else if (high == 8)
                tile(8, 1, 2 * M, left, rows, r, width, to);
            else if (wide == 2 * FLOATS)
                tile(1, 2, 2 * M, left, rows, r, width, to);
            else
                tile(1, 1, 2 * M, left, rows, r, width, to);
        }
    }
}

/* Cosines, sines and 1 / sqrt(N);  N = M - sum p^2 - sum q^2 + 2 sum p^2 q^2 - 2 sum (cos p sin p) (cos q sin q). */
static void prepare(Product *product, const Map *map, long M)
{
    const long rows = product->padded_rows, width = product->width;
    waves(map, M, map->phase, &product->rows, product->row_points, rows, product->p);
    waves(map, M, NULL, &product->columns, product->column_points, width, product->q);
    float *restrict by_row = product->values, *restrict by_column = product->values + rows; /* not yet in use */
    for (long i = 0; i < rows + width; i++)
        product->values[i] = 0.0f;
    for (long m = 0; m < M; m++) {
        const float *restrict p = product->p + 2 * m * rows, *restrict q = product->q + 2 * m * width;
        float *restrict left = product->left + 2 * m * rows, *restrict right = product->right + 2 * m * width;
        for (long i = 0; i < rows; i++) {
            by_row[i] += p[i] * p[i];
            left[i] = 2.0f * p[i] * p[i];
            left[rows + i] = -2.0f * p[i] * p[rows + i];
        }
        for (long j = 0; j < width; j++) {
            by_column[j] += q[j] * q[j];
            right[j] = q[j] * q[j];
            right[width + j] = q[j] * q[width + j];
        }
    }
    multiply(product, M, product->right, 0, width, product->scale);
    for (long i = 0; i < product->rows.n; i++)
        for (long j = 0; j < width; j++) {
            float N = product->scale[i * width + j] + ((float)M - by_row[i] - by_column[j]);
            product->scale[i * width + j] = 1.0f / sqrtf(N < FLT_EPSILON ? FLT_EPSILON : N);
        }
}

/* Writes the values of the function with weights P x padded M to product->values. */
static void screen(Product *product, const Map *map, long M, const double *weights)
{
    const long rows = product->padded_rows, width = product->width, n = product->rows.n;
    const long regions = product->columns.regions, many = regions * product->rows.regions > 1;
    for (long c = 0; c < regions; c++) {
        for (long m = 0; m < M; m++) {
            const float *restrict p = product->p + 2 * m * rows;
            float *restrict left = product->left + 2 * m * rows;
            float shared = (float)weights[m];
            for (long i = 0; i < rows; i++) {
                long region = many && i < n ? product->rows.region[i] * regions + c : 0;
                float w = many ? (float)weights[region * map->M + m] : shared;
                left[i] = w * p[i];
                left[rows + i] = -w * p[rows + i];
            }
        }
        multiply(product, M, product->q, product->first[c], product->first[c + 1], product->values);
    }
    for (long i = 0; i < n * width; i++)
        product->values[i] *= product->scale[i];
}

#endif
