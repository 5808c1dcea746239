/* FT: a partial differential equation, solved by Fourier transforms in three dimensions.
 *
 * Each rank has planes of equal z. A transform exchanges them for planes of equal y, in which each rank sends a block to every
 * other. The number of ranks divides the lengths of y and z. */
#include "nas.h"

#include <complex.h>

enum { STEPS = 6 };
#define ALPHA 1e-6

typedef double complex number;

static const int dimensions[3][3] = {{64, 64, 64}, {128, 128, 32}, {256, 256, 128}};
static const double official[3][2 * STEPS] = {
	{554.6087004964, 484.5363331978, 554.6385409189, 486.5304269511, 554.6148406171, 488.3910722336, 554.5423607415, 490.1273169046,
	 554.4255039624, 491.7475857993, 554.2683411902, 493.2597244941},
	{567.3612178944, 529.3246849175, 563.1436885271, 528.2149986629, 559.4024089970, 527.0996558037, 556.0698047020, 526.0027904925,
	 553.0898991250, 524.9400845633, 550.4159734538, 523.9212247086},
	{504.6735008193, 511.4047905510, 505.9412319734, 509.8809666433, 506.9376896287, 509.8144042213, 507.7892868474, 510.1336130759,
	 508.5233095391, 510.4914655194, 509.1487099959, 510.7917842803},
};

static int nx, ny, nz, own_y, own_z, first_y, first_z;

/* Transforms a line by Stockham's algorithm, which needs no reordering; returns where the result is: `line` or `scratch`. */
static number *transform(number *line, number *scratch, const number *roots, int length)
{
	for (int count = length, stride = 1; count > 1; count /= 2, stride *= 2) {
		int half = count / 2;
		for (int p = 0; p < half; p++)
			for (int q = 0; q < stride; q++) {
				number a = line[q + stride * p], b = line[q + stride * (p + half)];
				scratch[q + stride * 2 * p] = a + b;
				scratch[q + stride * (2 * p + 1)] = (a - b) * roots[p * stride];
			}
		number *swapped = line;
		line = scratch, scratch = swapped;
	}
	return line;
}

/* Transforms lines of `length` values that are `stride` apart; the line `l` begins at l / stride * stride * length + l % stride. */
static void transform_lines(number *data, int lines, int length, int stride, double sign)
{
	number *roots = room(length, sizeof *roots), *line = room(length, sizeof *line), *scratch = room(length, sizeof *scratch);
	for (int at = 0; at < length / 2; at++) {
		double angle = 2 * acos(-1) * at / length;
		roots[at] = cos(angle) + sign * I * sin(angle);
	}
	for (int l = 0; l < lines; l++) {
		number *begins = data + (size_t)(l / stride) * stride * length + l % stride;
		for (int at = 0; at < length; at++)
			line[at] = begins[(size_t)at * stride];
		number *result = transform(line, scratch, roots, length);
		for (int at = 0; at < length; at++)
			begins[(size_t)at * stride] = result[at];
	}
	free(roots), free(line), free(scratch);
}

/* Exchanges [z][y][x] for [y][x][z] if `forward`, and back otherwise; `blocks` has as much room as the data. */
static void transpose(number *data, number *blocks, int forward)
{
	size_t points = (size_t)nx * own_y * own_z, ranks = world_size();
	for (int turn = 0; turn < 2; turn++) {
		int packs = (turn == 0) == !!forward;
		for (size_t r = 0; r < ranks; r++)
			for (int z = 0; z < own_z; z++)
				for (size_t at = 0; at < (size_t)nx * own_y; at++) {
					size_t in_block = r * points + z * (size_t)nx * own_y + at;
					size_t in_z = ((size_t)z * ny + r * own_y) * nx + at, in_y = at * nz + r * own_z + z;
					if (turn == 0)
						blocks[in_block] = data[packs ? in_z : in_y];
					else
						data[packs ? in_z : in_y] = blocks[in_block];
				}
		if (turn == 0) {
			end();
			MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, blocks, (int)(2 * points), MPI_DOUBLE, MPI_COMM_WORLD);
			begin();
		}
	}
}

static double wave(int at, int length)
{
	double k = (at + length / 2) % length - length / 2;
	return k * k;
}

static void solve(number *field, number *data, number *blocks, size_t points, double *sums)
{
	uint64_t stream = skipped(SEED, 2 * (uint64_t)nx * ny * first_z);
	begin();
	for (size_t at = 0; at < points; at++) {
		double real = draw(&stream);
		field[at] = real + I * draw(&stream);
	}
	transform_lines(field, ny * own_z, nx, 1, 1);
	transform_lines(field, nx * own_z, ny, nx, 1);
	transpose(field, blocks, 1);
	transform_lines(field, nx * own_y, nz, 1, 1);
	for (int step = 0; step < STEPS; step++) {
		for (size_t at = 0; at < points; at++) {
			size_t line = at / nz;
			double across = wave(line % nx, nx) + wave(first_y + line / nx, ny) + wave(at % nz, nz);
			field[at] *= exp(-4 * ALPHA * acos(-1) * acos(-1) * across);
		}
		memcpy(data, field, points * sizeof *data);
		transform_lines(data, nx * own_y, nz, 1, -1);
		transpose(data, blocks, 0);
		transform_lines(data, nx * own_z, ny, nx, -1);
		transform_lines(data, ny * own_z, nx, 1, -1);
		number sum = 0;
		for (int j = 1; j <= 1024; j++) {
			int z = 5 * j % nz - first_z;
			if (z >= 0 && z < own_z)
				sum += data[((size_t)z * ny + 3 * j % ny) * nx + j % nx];
		}
		end();
		double own[2] = {creal(sum), cimag(sum)};
		MPI_Allreduce(own, sums + 2 * step, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		begin();
		for (int part = 0; part < 2; part++)
			sums[2 * step + part] /= (double)nx * ny * nz;
	}
	end();
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int class = class_of(argc, argv), times = times_of(argc, argv), size = world_size();
	nx = dimensions[class][0], ny = dimensions[class][1], nz = dimensions[class][2];
	CHECK(ny % size == 0 && nz % size == 0);
	own_y = ny / size, own_z = nz / size, first_y = world_rank() * own_y, first_z = world_rank() * own_z;
	size_t points = (size_t)nx * ny * own_z;
	number *field = room(points, sizeof *field), *data = room(points, sizeof *data), *blocks = room(points, sizeof *blocks);
	double sums[2 * STEPS];
	for (int time = 0; time < times; time++)
		solve(field, data, blocks, points, sums);
	verify("ft", class, sums, official[class], 2 * STEPS, 1e-12);
	return 0;
}
