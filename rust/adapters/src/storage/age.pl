# age.pl DIRECTORY FULLNESS_PERCENT CHURN SEED
# Ages the file system that a directory is on: fills it with files of random sizes until so many percent of it are
# used, then deletes and writes files in random order until CHURN times their bytes were written once more. The
# files stay, in a directory of their own. The same seed gives the same files.
use strict;
use warnings;

my ($root, $fullness, $churn, $seed) = @ARGV;
my $home = "$root/bedplate-ageing";
# Sizes are log-uniform: as many files from 4 to 8 KiB as from 512 KiB to 1 MiB.
my ($least, $most) = (4096, 1 << 20);
# Allocation is put off until files are written back; so often it is made to happen in between.
my $written_back_every = 32 << 20;

sub used_and_all {
    system('sync', '-f', $root) == 0 or die "sync failed\n";
    my ($block, $all, $free) = split ' ', `stat -f -c '%S %b %f' '$root'`;
    return (($all - $free) * $block, $all * $block);
}

srand($seed);
# Nothing that a file system could compress.
my $noise = join '', map { pack 'L', int rand 4294967296 } 1 .. $most / 2;
my (@names, %bytes_of);
my ($number, $bytes, $written, $unsynced) = (0, 0, 0, 0);

sub write_file {
    my $size = int($least * ($most / $least)**rand);
    my $name = sprintf '%s/%02d/%d', $home, $number % 64, $number;
    $number++;
    open my $file, '>:raw', $name or die "$name: $!\n";
    syswrite($file, $noise, $size, int rand($most)) == $size or die "$name: $!\n";
    close $file or die "$name: $!\n";
    push @names, $name;
    $bytes_of{$name} = $size;
    $_ += $size for $bytes, $written, $unsynced;
    if ($unsynced >= $written_back_every) {
        system('sync', '-f', $root) == 0 or die "sync failed\n";
        $unsynced = 0;
    }
}

sub delete_file {
    my $at = int rand @names;
    ($names[$at], $names[-1]) = ($names[-1], $names[$at]);
    my $name = pop @names;
    unlink $name or die "$name: $!\n";
    $bytes -= delete $bytes_of{$name};
}

mkdir $home or die "$home: $!\n";
mkdir sprintf '%s/%02d', $home, $_ for 0 .. 63;
# What the file system itself takes for a file is seen only afterwards, so the goal is neared in steps.
for (1 .. 20) {
    my ($used, $all) = used_and_all();
    my $lacking = $all * $fullness / 100 - $used;
    last if $lacking < $most;
    my $goal = $bytes + $lacking * 0.9;
    write_file() while $bytes < $goal;
}
my ($filled, $goal) = ($bytes, $written + $churn * $bytes);
while ($written < $goal) {
    delete_file() while @names && $bytes > $filled - $most;
    write_file();
}
my ($used, $all) = used_and_all();
print 'files=', scalar @names, "\nbytes=$bytes\nwritten_bytes=$written\nused_bytes=$used\nall_bytes=$all\n";
