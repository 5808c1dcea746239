/* EP: pairs of Gaussian deviates, counted in square annuli. Ranks exchange messages only at the end. */
#include "nas.h"

enum { BLOCK = 1 << 16, ANNULI = 10 };

/* Two signed sums (before 3.4.2), two absolute sums (since), and the count of pairs. */
static const double official[3][5] = {
	{-3.24783465203474e3, -6.958407078382297e3, 1.051299420395306e7, 1.051517131857535e7, 13176389},
	{-2.863319731645753e3, -6.320053679109499e3, 2.102505525182392e7, 2.103162209578822e7, 26354769},
	{-4.295875165629892e3, -1.580732573678431e4, 1.682235632304711e8, 1.682195123368299e8, 210832767},
};

static void count(uint64_t block, double *sums, uint64_t *annuli)
{
	uint64_t stream = skipped(SEED_EP, 2 * BLOCK * block);
	for (int at = 0; at < BLOCK; at++) {
		double x = 2 * draw(&stream) - 1, y = 2 * draw(&stream) - 1, t = x * x + y * y;
		if (t > 1)
			continue;
		double scale = sqrt(-2 * log(t) / t);
		x *= scale, y *= scale;
		int annulus = (int)fmax(fabs(x), fabs(y));
		annuli[annulus < ANNULI ? annulus : ANNULI - 1]++;
		sums[0] += x, sums[1] += y, sums[2] += fabs(x), sums[3] += fabs(y);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int class = class_of(argc, argv), times = times_of(argc, argv);
	uint64_t blocks = (uint64_t)1 << (const int[]){8, 9, 12}[class];
	double values[5];
	for (int time = 0; time < times; time++) {
		double sums[4] = {0};
		uint64_t annuli[ANNULI] = {0}, all[ANNULI], pairs = 0;
		begin();
		for (uint64_t block = world_rank(); block < blocks; block += world_size())
			count(block, sums, annuli);
		end();
		MPI_Allreduce(sums, values, 4, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		MPI_Allreduce(annuli, all, ANNULI, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int annulus = 0; annulus < ANNULI; annulus++)
			pairs += all[annulus];
		values[4] = (double)pairs;
	}
	verify("ep", class, values, official[class], 5, 1e-8);
	return 0;
}
