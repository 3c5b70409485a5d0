from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("attempt", models.PositiveIntegerField()),
            ],
        ),
    )
